"""The criteria, listed once. A new one is a file beside these and a line below."""

import re

from analysis.criteria.base import Criterion
from analysis.criteria.damage import DAMAGE
from analysis.criteria.heapr import CAMERA_P, HEAPR, camera_p
from analysis.criteria.mone import MONE
from analysis.criteria.pathfinder import PATHFINDER, pathfinder
from analysis.criteria.unified import NAMED_VARIANTS, RANKABLE, VARIANTS, unified
from analysis.criteria.weight_based import AIMER, HOYER, MAGNITUDE, RANDOM
from analysis.errors import CriterionError, unknown_name

__all__ = ["CRITERIA", "RANKABLE", "VARIANTS", "Criterion", "get_criterion", "unified"]

CRITERIA = {
    criterion.name: criterion
    for criterion in (
        *NAMED_VARIANTS,
        MONE,
        DAMAGE,
        HEAPR,
        CAMERA_P,
        PATHFINDER,
        AIMER,
        MAGNITUDE,
        HOYER,
        RANDOM,
    )
}
_EXPONENTS = re.compile(r"\s*(\d{1,9})\s*,\s*(\d{1,9})\s*,\s*(\d{1,9})\s*")
_LAMBDA = re.compile(rf"{CAMERA_P.name}:(\d+(?:\.\d+)?)")
_PATHS = re.compile(rf"{PATHFINDER.name}:(\d{{1,9}})")


def get_criterion(name: str) -> Criterion:
    """The criterion of this name, or the unified variant of exponents such as "1,0,2".

    "camera-p:0.5" is CAMERA-P with another lambda, "pathfinder:500" MoE Pathfinder with as many
    paths of each sample.

    Raises:
        CriterionError: unknown, out of range, or (1,0,0), which cannot rank.
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
                "The variant 1,0,0 gives every routed expert the score 1, so it ranks nothing; "
                "use 0,0,0 (Frequency) or any other exponents."
            )
        return unified(b, alpha, beta)
    if match := _LAMBDA.fullmatch(name):
        return camera_p(float(match[1]))
    if match := _PATHS.fullmatch(name):
        return pathfinder(int(match[1]))
    if name in CRITERIA:
        return CRITERIA[name]
    raise CriterionError(
        unknown_name("criterion", name, CRITERIA) + " Or give exponents b,alpha,beta."
    )
