"""All criteria. To add one, write a file here and list it below."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

from analysis.criteria.base import Criterion, Granularity
from analysis.criteria.damage import DAMAGE
from analysis.criteria.heapr import CAMERA_P, HEAPR, camera_p
from analysis.criteria.mone import MONE
from analysis.criteria.pathfinder import PATHFINDER, pathfinder
from analysis.criteria.unified import NAMED_VARIANTS, RANKABLE, VARIANTS, unified
from analysis.criteria.weight_based import AIMER, HOYER, MAGNITUDE, NEURON_NORMS, RANDOM, random
from analysis.errors import CriterionError, unknown_name
from analysis.lazy import pd
from analysis.numbers.arrays import FloatArray
from analysis.stats.columns import Gate

__all__ = [
    "CRITERIA",
    "NEURON_CRITERIA",
    "RANKABLE",
    "VARIANTS",
    "Criterion",
    "Granularity",
    "check_ranks",
    "expert_score_of",
    "get_criterion",
    "neuron_score_of",
    "unified",
]

# Criteria of whole experts.
_CALIBRATED = (
    *NAMED_VARIANTS,
    MONE,
    DAMAGE,
    HEAPR,
    CAMERA_P,
    PATHFINDER,
)
CRITERIA = {
    criterion.name: criterion for criterion in (*_CALIBRATED, AIMER, MAGNITUDE, HOYER, RANDOM)
}
# Criteria of neurons: calibrated ones first, then by weights, then by nothing.
NEURON_CRITERIA = {
    criterion.name: criterion for criterion in (HEAPR, CAMERA_P, NEURON_NORMS, RANDOM)
}
_EXPONENTS = re.compile(r"\s*(\d{1,9})\s*,\s*(\d{1,9})\s*,\s*(\d{1,9})\s*")
_LAMBDA = re.compile(rf"{CAMERA_P.name}:(\d+(?:\.\d+)?)")
_PATHS = re.compile(rf"{PATHFINDER.name}:(\d{{1,9}})")
_SEED = re.compile(rf"{RANDOM.name}:(\d{{1,9}})")


@cache
def get_criterion(name: str) -> Criterion:
    """The criterion of this name, or the unified variant of exponents such as "1,0,2".

    "camera-p:0.5" is CAMERA-P with another lambda, "pathfinder:500" MoE Pathfinder with that many
    paths per sample, "random:2" another draw of Random. A CriterionError if it is unknown, out of
    range, or cannot rank.
    """
    if match := _EXPONENTS.fullmatch(name):
        b, alpha, beta = (int(part) for part in match.groups())
        if (b, alpha, beta) not in VARIANTS:
            raise CriterionError(
                f"The exponents {b},{alpha},{beta} are out of range: b is 0 or 1, alpha and beta "
                "are 0, 1 or 2."
            )
        if (b, alpha, beta) == (1, 0, 0):
            raise CriterionError(
                "The variant 1,0,0 gives every routed expert the same score, 1; use 0,0,0 "
                "(Frequency) or other exponents."
            )
        return unified(b, alpha, beta)
    if match := _LAMBDA.fullmatch(name):
        return camera_p(float(match[1]))
    if match := _PATHS.fullmatch(name):
        return pathfinder(int(match[1]))
    if match := _SEED.fullmatch(name):
        return random(int(match[1]))
    if name.startswith(f"{RANDOM.name}:"):
        raise CriterionError(
            f"{name!r} is not a draw of Random; its seed is a whole number of at most nine digits, "
            f"as in {RANDOM.name}:2."
        )
    if criterion := CRITERIA.get(name) or NEURON_CRITERIA.get(name):
        return criterion
    raise CriterionError(
        unknown_name("criterion", name, CRITERIA) + " Or give exponents b,alpha,beta."
    )


def criterion_label(name: str) -> str:
    """The label of a criterion; imported plans keep their own name."""
    try:
        return get_criterion(name).label
    except CriterionError:
        return name


def expert_score_of(criterion: Criterion) -> Callable[[pd.DataFrame, Gate], FloatArray]:
    """How a criterion scores whole experts."""
    if criterion.score is None:
        raise CriterionError(
            f"{criterion.name} ranks neurons, not experts; where a command has it, add "
            "--granularity neuron."
        )
    return criterion.score


def neuron_score_of(criterion: Criterion) -> Callable[[pd.DataFrame], FloatArray]:
    """How a criterion scores neurons."""
    if criterion.neuron_score is None:
        names = ", ".join(NEURON_CRITERIA)
        raise CriterionError(f"{criterion.label} does not score neurons; use one of {names}.")
    return criterion.neuron_score


def check_ranks(criterion: Criterion, granularity: Granularity) -> None:
    """Refuse a criterion that does not rank what is to be removed: whole experts, or neurons."""
    _ = expert_score_of(criterion) if granularity == "expert" else neuron_score_of(criterion)
