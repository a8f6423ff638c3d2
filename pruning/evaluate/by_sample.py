"""Losses by sample: a plan chosen on one half and reported on the other, and what is too near."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, Final

import numpy as np

from analysis.arrays import FloatArray
from pruning.evaluate.quality import PlanLoss
from pruning.evaluate.record import SampleLosses
from pruning.evaluate.result import MIDDLE, RESAMPLES
from pruning.schedules import MEASURED
from pruning.search.store import SEARCH

EVEN: Final = slice(0, None, 2)
ODD: Final = slice(1, None, 2)
# What decides which samples of a corpus come first, of the facts of drawn samples.
_ORDER: Final = ("seed", "drawn", "skipped", "seq_len", "packing", "count", "truncate")


@dataclass(frozen=True, eq=False)
class ChosenPlan:
    """A plan and its loss where it was chosen, and where nothing was chosen."""

    chosen: PlanLoss  # on the even samples, which chose it among others: too good by that
    reported: PlanLoss  # on the odd samples


@dataclass(frozen=True)
class LossDifference:
    """By how much one plan loses more than another, in nats per token, mean over corpora."""

    mean: float
    # low, high: 95% bootstrap interval over samples, which are the same for both plans.
    low: float
    high: float

    @property
    def is_clear(self) -> bool:
        """Whether the samples tell the two plans apart: the interval does not hold 0."""
        return not self.low <= 0 <= self.high


def of_samples(loss: PlanLoss, picked: Mapping[str, slice]) -> PlanLoss | None:
    """The loss on some of the samples of some corpora, on all samples of the others.

    None where the loss of each sample was not kept, or none of a corpus are picked.
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
    """The loss on samples that did not choose the plan.

    `judged_on` is the corpus of a search, `SearchResult.header["corpus"]`: so many `samples`, from
    the beginning of an order. An evaluation that drew in the same order leaves these out; with
    another order nothing is known, and the corpus is left out. None where nothing remains.
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

    Of plans that were measured as most, on every corpus of the comparison, and whose losses of
    every sample were kept; None where there is none. Searched and measured schedules were chosen on
    held-out samples, which may be among these: they do not compete.
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

    Samples are drawn with replacement within each corpus, the same for both plans. None where the
    plans were not measured on the same samples, or the loss of each sample was not kept.
    """
    corpora = sorted(one.change.keys() & other.change.keys())
    known = [name for name in corpora if name in one.samples and name in other.samples]
    pairs = [(one.samples[name], other.samples[name]) for name in known]
    if not pairs or len(pairs) < len(corpora):
        return None
    if not all(_is_paired(*pair) for pair in pairs):
        return None
    apart = [first.means - second.means for first, second in pairs]
    low, high = interval_of(apart).tolist()
    return LossDifference(fmean(float(each.mean()) for each in apart), low, high)


def _is_paired(one: SampleLosses, other: SampleLosses) -> bool:
    """Whether both are of the same samples, up to the rounding of the original model's loss."""
    return one.tokens == other.tokens and np.allclose(one.full_nll, other.full_nll, atol=1e-3)


def interval_of(apart: Sequence[FloatArray], seed: int = 42) -> FloatArray:
    """The middle 95% of the mean over corpora of means over samples that are drawn again.

    Each of `apart` is of a corpus: (samples, ...). The result is (2, ...): low, high.
    """
    rng = np.random.default_rng(seed)
    means = [
        each[rng.integers(len(each), size=(RESAMPLES, len(each)))].mean(axis=1) for each in apart
    ]
    return np.percentile(np.mean(means, axis=0), MIDDLE, axis=0)
