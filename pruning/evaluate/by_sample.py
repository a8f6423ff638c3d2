"""Losses by sample: choose a plan on one half and report the other; are two plans distinct?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, Final

import numpy as np

from analysis.arrays import FloatArray
from pruning.evaluate.quality import PlanLoss
from pruning.evaluate.result import MIDDLE, RESAMPLES
from pruning.schedules import MEASURED
from pruning.search.store import SEARCH

EVEN: Final = slice(0, None, 2)
ODD: Final = slice(1, None, 2)
# The facts of drawn samples that decide which samples of a corpus come first.
_ORDER: Final = ("seed", "drawn", "skipped", "seq_len", "packing", "count", "truncate")


@dataclass(frozen=True, eq=False)
class ChosenPlan:
    """A plan with its loss on the samples that chose it and on others."""

    chosen: PlanLoss  # on the even samples: optimistic, since they chose it
    reported: PlanLoss  # on the odd samples


@dataclass(frozen=True)
class LossDifference:
    """How much higher the loss of one plan is, in nats per token, mean over corpora."""

    mean: float
    low: float  # low, high: 95% paired bootstrap interval over samples
    high: float

    @property
    def is_clear(self) -> bool:
        """Whether the interval excludes 0."""
        return not self.low <= 0 <= self.high


def of_samples(loss: PlanLoss, picked: Mapping[str, slice]) -> PlanLoss | None:
    """The loss on the picked samples of some corpora, and on all samples of the others.

    None if losses by sample are missing, or no sample of a corpus is picked.
    """
    wanted = {name: part for name, part in picked.items() if name in loss.change}
    parts = {
        name: loss.samples[name].picked(part)
        for name, part in wanted.items()
        if name in loss.samples
    }
    if len(parts) < len(wanted) or not all(part.tokens for part in parts.values()):
        return None
    full = {name: float(part.full_means.mean()) for name, part in parts.items()}
    change = {name: float(part.means.mean()) - full[name] for name, part in parts.items()}
    sizes = [loss.num_samples, *(len(part.tokens) for part in parts.values())]
    return replace(
        loss,
        change={**loss.change, **change},
        full={**loss.full, **full},
        samples={**loss.samples, **parts},
        num_samples=min(sizes),
    )


def unseen(loss: PlanLoss, judged_on: Mapping[str, Any]) -> PlanLoss | None:
    """The loss without the samples that chose the plan; None if nothing remains.

    `judged_on` is the corpus of a search, `SearchResult.header["corpus"]`: the first `samples` of
    an order. If the evaluation drew in the same order, these are left out, else the whole corpus.
    """
    name = judged_on["name"]
    if name not in loss.change:
        return loss
    if all(loss.drawn[name].get(key) == judged_on.get(key) for key in _ORDER):
        rest = of_samples(loss, {name: slice(judged_on["samples"], None)})
        if rest is not None:
            return rest
    change = {each: value for each, value in loss.change.items() if each != name}
    return replace(loss, change=change) if change else None


def choose_best(losses: Iterable[PlanLoss]) -> ChosenPlan | None:
    """The plan with the smallest mean over corpora on the even samples, with its loss on the odd.

    Only plans compete that were measured as most were, on every corpus of the comparison, with
    losses by sample. Searched and measured schedules do not: they were chosen on held-out samples,
    which may be among these.
    """
    halves = []
    for loss in losses:
        if loss.way or loss.missing or loss.facts.schedule in (SEARCH, MEASURED):
            continue
        even, odd = (of_samples(loss, dict.fromkeys(loss.change, half)) for half in (EVEN, ODD))
        if even is not None and odd is not None:
            halves.append(ChosenPlan(even, odd))
    return min(halves, key=lambda each: (each.chosen.mean, each.chosen.plan), default=None)


def difference(one: PlanLoss, other: PlanLoss) -> LossDifference | None:
    """Loss of `one` minus that of `other` on the corpora of both, with a paired bootstrap.

    Samples are resampled within each corpus, the same ones for both plans. None if the plans were
    not measured on the same samples, or losses by sample are missing.
    """
    corpora = sorted(one.change.keys() & other.change.keys())
    known = [name for name in corpora if name in one.samples and name in other.samples]
    pairs = [(one.samples[name], other.samples[name]) for name in known]
    # The losses of the original model tell whether the samples are the same, up to rounding.
    if (
        not pairs
        or len(pairs) < len(corpora)
        or any(a.tokens != b.tokens for a, b in pairs)
        or not all(np.allclose(a.full_nll, b.full_nll, atol=1e-3) for a, b in pairs)
    ):
        return None
    apart = [first.means - second.means for first, second in pairs]
    low, high = interval_of(apart).tolist()
    return LossDifference(fmean(float(each.mean()) for each in apart), low, high)


def interval_of(apart: Sequence[FloatArray], seed: int = 42) -> FloatArray:
    """95% bootstrap interval of the mean over corpora of means over samples.

    `apart` has one array (samples, ...) per corpus. The result is (2, ...): low, high.
    """
    rng = np.random.default_rng(seed)
    means = [
        each[rng.integers(len(each), size=(RESAMPLES, len(each)))].mean(axis=1) for each in apart
    ]
    return np.percentile(np.mean(means, axis=0), MIDDLE, axis=0)
