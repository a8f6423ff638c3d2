"""How far the sum over layers is off, learned from plans that were measured whole.

Layers interact, so the sum of what each costs alone errs, alike for plans that are alike. The log
ratio ln((measured + c) / (sum + c)) is a Gaussian process over the shares that layers lose, one for
each corpus: nearly known beside a measured plan, as wide as the prior far from all. How much pairs
of sums and measured losses err scales it, so that the predicted log ratio is Student's t.

The constants predicted the demo's measured plans best, each plan left out, and each sparsity.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np

from analysis.arrays import FloatArray, IntArray
from analysis.cache_keys import Numbered
from pruning.allocation import Removed
from pruning.evaluate.result import MIDDLE, RESAMPLES, SampleValues
from pruning.sensitivity.curves import Curves, Sensitivity

_PRIOR: Final = 0.25  # standard deviation of the log ratio where no plan was measured
_WEIGHT: Final = 8  # pairs as which the prior counts
_REACH: Final = 1.0  # distance at which the correlation falls to 1/e, see `_correlation`
_NOISE: Final = 0.03  # standard deviation of log ratios of equal plans, besides the texts
_LEAST: Final = 0.01  # c of the log ratio, in nats: below it losses do not tell plans apart


class LogRatio(NamedTuple):
    """Student's t of the log ratio of each plan, on one corpus."""

    mean: FloatArray  # (plans,)
    scale: FloatArray  # (plans,)
    freedom: int


class Band(NamedTuple):
    """What plans cost: the median, and the 95% band of texts and of the error of the sum."""

    median: FloatArray  # (plans,) nats per token
    low: FloatArray
    high: FloatArray


@dataclass(frozen=True, eq=False)
class SumError(Numbered):
    """Curves of the loss increase, and the plans of their order that were measured whole."""

    curves: Sensitivity  # with `by_sample`
    known: Mapping[Removed, Mapping[str, float]]  # plan -> corpus -> measured loss increase

    def bands(self, plans: IntArray) -> tuple[Band, dict[str, Band]]:
        """The mean over corpora of `plans` (plans, layers), and each corpus.

        What was measured of a plan itself does not count, so that measurements judge predictions.
        A plan that removes nothing costs nothing.
        """
        drawn = {each.corpus: self._draws(each, plans) for each in self.curves.curves}
        by_corpus = {corpus: _band(*each) for corpus, each in drawn.items()}
        medians, draws = (np.mean(each, axis=0) for each in zip(*drawn.values(), strict=True))
        return _band(medians, draws), by_corpus

    def measured(self, removed: Removed) -> float:
        """The mean over all corpora of the curves; NaN if it was not measured on one of them."""
        measured = self.known.get(removed, {})
        losses = [measured.get(each.corpus, np.nan) for each in self.curves.curves]
        return float(np.mean(losses))

    def is_guess(self, removed: Removed) -> bool:
        """Whether the band is no more than a prior.

        So it is if no other plan of this order was measured, and where most layers lose more than
        the last but one level of their curves: layers that are all ruined do not add up.
        """
        levels = [curve.removed[-2] for curve in self.curves.curves[0].layers]
        at_floor = np.mean(np.greater(removed, levels)) > 0.5
        return bool(at_floor) or not self.known.keys() - {removed}

    def _draws(self, curves: Curves, plans: IntArray) -> tuple[FloatArray, FloatArray]:
        """Medians (plans,) and draws (RESAMPLES, plans) on one corpus."""
        ratio, sums = self._log_ratio(curves, plans), curves.predicted_by_sample(plans)
        # The same seed for each corpus: its sums err in the same direction, as far as is known.
        rng = np.random.default_rng(42)
        error = rng.standard_t(ratio.freedom, size=(RESAMPLES, 1))
        resampled = SampleValues(sums, curves.documents).resampled_means(rng)
        medians = _times(sums.mean(axis=0), ratio.mean)
        draws = _times(resampled, ratio.mean + ratio.scale * error)
        is_cut = plans.any(axis=1)
        return medians * is_cut, draws * is_cut

    def _log_ratio(self, curves: Curves, plans: IntArray) -> LogRatio:
        """Of each plan, without its own pair."""
        pairs = self._pairs[curves.corpus]
        count, freedom = len(pairs.log_ratios), _WEIGHT + len(pairs.log_ratios)
        if not count:
            prior = np.hypot(_PRIOR, _NOISE)
            return LogRatio(np.zeros(len(plans)), np.full(len(plans), prior), freedom)
        precision = np.linalg.inv(
            _PRIOR**2 * _correlation(pairs.shares, pairs.shares) + np.diag(pairs.noise)
        )
        pull = precision @ pairs.log_ratios
        cross = _PRIOR**2 * _correlation(_shares(curves, plans), pairs.shares)
        mean = cross @ pull
        variance = _PRIOR**2 + _NOISE**2 - np.sum(cross @ precision * cross, axis=1)
        misfit = np.full(len(plans), pairs.log_ratios @ pull)
        freedoms = np.full(len(plans), freedom)
        for place, removed in enumerate(map(tuple, plans.tolist())):
            own = pairs.places.get(removed)
            if own is not None:
                # The process without this pair, from the inverse of the whole matrix.
                mean[place] = pairs.log_ratios[own] - pull[own] / precision[own, own]
                texts = pairs.noise[own] - _NOISE**2
                variance[place] = max(1 / precision[own, own] - texts, _NOISE**2)
                misfit[place] -= pull[own] ** 2 / precision[own, own]
                freedoms[place] -= 1
        scale = np.sqrt((_WEIGHT + misfit) / freedoms * variance)
        return LogRatio(mean, scale, freedom)

    @cached_property
    def _pairs(self) -> dict[str, _Pairs]:
        return {each.corpus: _pairs(each, self.known) for each in self.curves.curves}


class _Pairs(NamedTuple):
    """The sums and measured losses of one corpus."""

    places: Mapping[Removed, int]
    shares: FloatArray  # (pairs, layers)
    log_ratios: FloatArray  # (pairs,)
    noise: FloatArray  # (pairs,) variance of the log ratios, with that of documents


def _pairs(curves: Curves, known: Mapping[Removed, Mapping[str, float]]) -> _Pairs:
    measured = {plan: by[curves.corpus] for plan, by in known.items() if curves.corpus in by}
    plans = np.array(list(measured), dtype=np.int64).reshape(len(measured), len(curves.layers))
    sums = curves.predicted_by_sample(plans)
    means, losses = sums.mean(axis=0), np.array(list(measured.values()))
    log_ratios = np.log(_above_zero(losses) / _above_zero(means))
    texts = SampleValues(sums, curves.documents).variance_of_mean()
    noise = _NOISE**2 + texts / _above_zero(means) ** 2
    places = {plan: place for place, plan in enumerate(measured)}
    return _Pairs(places, _shares(curves, plans), log_ratios, noise)


def _shares(curves: Curves, plans: IntArray) -> FloatArray:
    """(plans, layers) share of the most that the curve of each layer removes."""
    return np.asarray(plans / np.array([curve.removed[-1] for curve in curves.layers]))


def _correlation(some: FloatArray, others: FloatArray) -> FloatArray:
    """(some, others): by their distance, the mean over layers of how much the shares differ."""
    apart = np.abs(some[:, None] - others[None]).mean(axis=-1)
    return np.asarray(np.exp(-apart / _REACH))


def _above_zero(losses: FloatArray) -> FloatArray:
    # Texts can make a loss increase negative, of which there is no logarithm.
    return np.maximum(losses + _LEAST, _LEAST / 2)


def _times(sums: FloatArray, log_ratio: FloatArray) -> FloatArray:
    return np.asarray(_above_zero(sums) * np.exp(log_ratio) - _LEAST)


def _band(medians: FloatArray, draws: FloatArray) -> Band:
    return Band(medians, *np.percentile(draws, MIDDLE, axis=0))
