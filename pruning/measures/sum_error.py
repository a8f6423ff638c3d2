"""What a plan will lose on new texts: the sum over layers, how far it is off, how texts differ.

Layers interact, so the sum of what each costs alone errs, alike for plans that are alike. The log
ratio ln((measured + c) / (sum + c)) is a Gaussian process over the shares that layers lose, one for
each corpus: nearly known beside a measured plan, as wide as the prior far from all. How much pairs
of sums and measured losses err scales it, so that the predicted log ratio is Student's t.

Documents differ, those of the curves from others. Their mean loss increases by the curves tell how
much, a few documents together with what is known of all texts: their variance grows with the mean.
It enters twice, for the documents of the curves and for those that the plan will be measured on.

The constants of the process predicted the demo's measured plans best, each plan left out, and each
sparsity, on the usual texts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from analysis.cache_keys import IdentityKey
from analysis.numbers.arrays import FloatArray, IntArray
from pruning.measures.curves import Curves, Sensitivity
from pruning.measures.result import MIDDLE, document_places
from pruning.measures.sample_settings import DEFAULT_SAMPLES
from pruning.plan.units import Removed

_PRIOR: Final = 0.35  # standard deviation of the log ratio where no plan was measured
_WEIGHT: Final = 4  # pairs as which the prior counts
_REACH: Final = 1.0  # distance at which the correlation falls to 1/e, see `_correlation`
_NOISE: Final = 0.03  # standard deviation of log ratios of equal plans, besides the texts
_LEAST: Final = 0.01  # c of the log ratio, in nats: below it losses do not tell plans apart
# Correlation of the errors of sums between corpora: -0.1 to 0.5 for pairs of the demo's first
# corpora.
_SHARED: Final = 0.25
# Variance of the mean loss increase of a document, in nats, per nat of the mean over documents:
# plans of the demo's first model that lose 0.01 to 5 nats have 0.04 (code), 0.03 (running text)
# and 0.09 (short answers).
_SPREAD: Final = 0.05
_DOCUMENTS: Final = 4  # as which it counts
_DRAWS: Final = 4000


class LogRatio(NamedTuple):
    """Student's t of the log ratio of each plan, on one corpus."""

    mean: FloatArray  # (plans,)
    scale: FloatArray  # (plans,)
    freedom: int


class Texts(NamedTuple):
    """Student's t of what a document adds to the mean loss increase of each plan, on one corpus."""

    scale: FloatArray  # (plans,) nats per token
    freedom: int
    documents: float  # of the curves, see `equal_documents`


class Band(NamedTuple):
    """What plans cost: the median, and the 95% band of texts and of the error of the sum."""

    median: FloatArray  # (plans,) nats per token
    low: FloatArray
    high: FloatArray


@dataclass(frozen=True, eq=False)
class SumError(IdentityKey):
    """Curves of the loss increase, and the plans of their order that were measured whole."""

    curves: Sensitivity  # with `by_sample`
    known: Mapping[Removed, Mapping[str, float]]  # plan -> corpus -> measured loss increase

    def bands(
        self, plans: IntArray, documents: Mapping[str, float] | None = None
    ) -> tuple[Band, dict[str, Band]]:
        """The mean over corpora of `plans` (plans, layers), and each corpus.

        95% of plans should lie in the band when they are measured on new texts of a corpus: on so
        many `documents` (see `equal_documents`) of each, by default as many as 64 samples have, the
        usual evaluation, if documents have as many samples each as those of the curves.

        What was measured of a plan itself does not count, so that measurements judge predictions.
        A plan that removes nothing costs nothing.
        """
        rng = np.random.default_rng(42)
        common = rng.standard_normal((_DRAWS, 1))
        drawn = {}
        for curve in self.curves.curves:
            specific = rng.standard_normal((_DRAWS, 1))
            errors = np.sqrt(_SHARED) * common + np.sqrt(1 - _SHARED) * specific
            new = (documents or {}).get(curve.corpus)
            drawn[curve.corpus] = self._draws(curve, plans, (rng, errors), new)
        by_corpus = {corpus: _band(*draw) for corpus, draw in drawn.items()}
        medians, draws = (np.mean(column, axis=0) for column in zip(*drawn.values(), strict=True))
        return _band(medians, draws), by_corpus

    def terms(self) -> dict[str, Any]:
        """What the medians of `bands` are computed from, as plain JSON.

        Of a plan, on each corpus: the sum over layers of its `costs` between its `levels`; the mean
        log ratio, which is `prior` * exp(-distance / `reach`) to the `shares` of each pair times
        `pull`, or `own` where the plan is that of a pair; then exp(ratio) * (sum + `least`) -
        `least`. `known` are the plans that `is_guess` looks for.
        """
        corpora = []
        for curve in self.curves.curves:
            pairs = self._pairs[curve.corpus]
            own = pairs.log_ratios - pairs.pull / np.diag(pairs.precision)
            corpora.append(
                {
                    "corpus": curve.corpus,
                    "levels": [layer.removed.tolist() for layer in curve.layers],
                    "costs": [costs.mean(axis=1).tolist() for costs in curve.by_sample],
                    "shares": pairs.shares.tolist(),
                    "pull": pairs.pull.tolist(),
                    "own": own.tolist(),
                }
            )
        return {
            "corpora": corpora,
            "known": [list(plan) for plan in self.known],
            "prior": _PRIOR**2,
            "reach": _REACH,
            "least": _LEAST,
        }

    def measured(self, removed: Removed) -> float:
        """The mean over all corpora of the curves; NaN if it was not measured on one of them."""
        measured = self.known.get(removed, {})
        losses = [measured.get(curve.corpus, np.nan) for curve in self.curves.curves]
        return float(np.mean(losses))

    def is_guess(self, removed: Removed) -> bool:
        """Whether the band is no more than a prior.

        So it is if no other plan of this order was measured, and where most layers lose more than
        the last but one level of their curves: layers that are all ruined do not add up.
        """
        levels = [curve.removed[-2] for curve in self.curves.curves[0].layers]
        at_floor = np.mean(np.greater(removed, levels)) > 0.5
        return bool(at_floor) or not self.known.keys() - {removed}

    def _draws(
        self,
        curves: Curves,
        plans: IntArray,
        chance: tuple[np.random.Generator, FloatArray],
        documents: float | None,
    ) -> tuple[FloatArray, FloatArray]:
        """Medians (plans,) and draws (_DRAWS, plans) on one corpus.

        `chance` has standard normal errors of the sums (_DRAWS, 1), and makes the others.
        """
        rng, errors = chance
        ratio, sums = self._log_ratio(curves, plans), curves.predicted_by_sample(plans)
        texts, means = _texts(sums, curves.documents), sums.mean(axis=0)
        errors = errors / np.sqrt(rng.chisquare(ratio.freedom, errors.shape) / ratio.freedom)
        medians = _times(means, ratio.mean)
        new = texts.documents * DEFAULT_SAMPLES / len(sums) if documents is None else documents
        shift = texts.scale * np.sqrt(1 / texts.documents + 1 / new) * np.exp(ratio.mean)
        shifts = shift * rng.standard_t(texts.freedom, errors.shape)
        draws = _times(means, ratio.mean + ratio.scale * errors) + shifts
        is_cut = plans.any(axis=1)
        return medians * is_cut, draws * is_cut

    def _log_ratio(self, curves: Curves, plans: IntArray) -> LogRatio:
        """Of each plan, without its own pair."""
        pairs = self._pairs[curves.corpus]
        count, freedom = len(pairs.log_ratios), _WEIGHT + len(pairs.log_ratios)
        if not count:
            prior = np.hypot(_PRIOR, _NOISE)
            return LogRatio(np.zeros(len(plans)), np.full(len(plans), prior), freedom)
        precision, pull = pairs.precision, pairs.pull
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
                samples = pairs.noise[own] - _NOISE**2
                variance[place] = max(1 / precision[own, own] - samples, _NOISE**2)
                misfit[place] -= pull[own] ** 2 / precision[own, own]
                freedoms[place] -= 1
        scale = np.sqrt((_WEIGHT + misfit) / freedoms * variance)
        return LogRatio(mean, scale, freedom)

    @cached_property
    def _pairs(self) -> dict[str, _Pairs]:
        return {curve.corpus: _pairs(curve, self.known) for curve in self.curves.curves}


class _Pairs(NamedTuple):
    """The sums and measured losses of one corpus."""

    places: Mapping[Removed, int]
    shares: FloatArray  # (pairs, layers)
    log_ratios: FloatArray  # (pairs,)
    noise: FloatArray  # (pairs,) variance of each log ratio, with that of samples
    precision: FloatArray  # (pairs, pairs) inverse of the covariance of the log ratios
    pull: FloatArray  # (pairs,) precision @ log_ratios


def _pairs(curves: Curves, known: Mapping[Removed, Mapping[str, float]]) -> _Pairs:
    measured = {plan: by[curves.corpus] for plan, by in known.items() if curves.corpus in by}
    plans = np.array(list(measured), dtype=np.int64).reshape(len(measured), len(curves.layers))
    sums = curves.predicted_by_sample(plans)
    means, losses = sums.mean(axis=0), np.array(list(measured.values()))
    log_ratios = np.log(_above_zero(losses) / _above_zero(means))
    # By samples: what a document adds to the log ratios of all pairs is no noise of each.
    samples = sums.var(axis=0, ddof=min(1, len(sums) - 1)) / len(sums)
    noise = _NOISE**2 + samples / _above_zero(means) ** 2
    places, shares = {plan: place for place, plan in enumerate(measured)}, _shares(curves, plans)
    covariance = _PRIOR**2 * _correlation(shares, shares) + np.diag(noise)
    precision = np.asarray(np.linalg.inv(covariance), np.float64)
    pull = np.asarray(precision @ log_ratios, np.float64)
    return _Pairs(places, shares, log_ratios, noise, precision, pull)


def _texts(sums: FloatArray, documents: Sequence[int] | None) -> Texts:
    """How much documents differ, from the sums (samples, plans) of samples and their documents."""
    places = document_places(documents, len(sums))
    sizes = np.bincount(places)
    by_document = np.zeros((len(sizes), sums.shape[1]))
    np.add.at(by_document, places, sums)
    by_document /= sizes[:, None]
    prior = _SPREAD * np.maximum(sums.mean(axis=0), _LEAST)
    apart = np.square(by_document - by_document.mean(axis=0)).sum(axis=0)
    freedom = _DOCUMENTS + len(sizes) - 1
    variance = (_DOCUMENTS * prior + apart) / freedom
    return Texts(np.sqrt(variance), freedom, equal_documents(sizes))


def equal_documents(sizes: ArrayLike) -> float:
    """How many documents with a sample each give as sure a mean as documents of these sizes.

    `sizes` (documents,) are samples of each; with as many of each it is their number.
    """
    samples = np.asarray(sizes, dtype=np.float64)
    return float(samples.sum() ** 2 / np.square(samples).sum())


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
