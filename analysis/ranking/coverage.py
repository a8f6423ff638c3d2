"""How well the experts that a blend keeps cover each corpus, and the weights of a fair blend."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product

import numpy as np

from analysis.criteria import Criterion, expert_score_of
from analysis.errors import CriterionError
from analysis.numbers.arrays import BoolArray, FloatArray
from analysis.ranking.experts import saliency_grid
from analysis.ranking.overlap import pruned_mask
from analysis.stats.blend import DERIVED_COLUMNS, NOT_MIXED, Mixture
from analysis.stats.columns import Gate

_STARTS_AT = 0.8  # weight of the corpus that a start favours
_GRID = 20


def coverage(saliency: FloatArray, kept: BoolArray) -> float:
    """Share of a corpus' saliency that the kept experts hold: mean over layers, 0..1.

    `saliency` (layers, experts) is not negative, NaN where there is no expert; `kept` is True for
    kept experts. A layer without any saliency counts 1.
    """
    total = np.nansum(saliency, axis=1)
    kept_saliency = np.where(kept, np.nan_to_num(saliency), 0.0).sum(axis=1)
    return float(np.divide(kept_saliency, total, out=np.ones_like(total), where=total > 0).mean())


@dataclass(frozen=True, slots=True)
class FairBlend:
    """The weights that maximise the coverage of the worst-covered corpus."""

    weights: tuple[float, ...]  # of each corpus, in the order of the runs; sum 1
    coverage: tuple[float, ...]  # of each corpus by the experts that this blend keeps


class Blender:
    """Coverage of every corpus as a function of weights, at one criterion and uniform sparsity."""

    def __init__(
        self, mixture: Mixture, criterion: Criterion, gate: Gate, sparsity: Fraction
    ) -> None:
        if criterion.source != "routed":
            raise CriterionError(
                f"{criterion.label} reads no calibration corpus, so there is nothing to blend."
            )
        if criterion.order:
            raise CriterionError(
                f"{criterion.label} ranks by places in an order, which do not add up to a "
                "coverage; use another criterion."
            )
        self._mixture, self._criterion, self._gate = mixture, criterion, gate
        self._score = expert_score_of(criterion)
        self._sparsity = sparsity
        self._grid = mixture.stats[0].grid
        self.alone = [saliency_grid(criterion, stats, gate) for stats in mixture.stats]
        if not set(NOT_MIXED).isdisjoint(criterion.columns(gate)):
            raise CriterionError(
                f"{criterion.label} reads maxima of neurons, which a blend does not have; use one "
                "corpus."
            )
        is_derived = not set(DERIVED_COLUMNS).isdisjoint(criterion.columns(gate))
        self._table = mixture.table if is_derived else mixture.sums_table

    def kept(self, weights: Sequence[float] | FloatArray) -> BoolArray:
        """(layers, experts): the experts that this blend keeps."""
        score = self._score(self._table(weights), self._gate)
        saliency = self._grid.fold(self._criterion.saliency(score))
        return ~pruned_mask(saliency, self._grid, self._sparsity) & self._grid.present

    def coverage(self, weights: Sequence[float] | FloatArray) -> FloatArray:
        """Coverage of each corpus by the experts that this blend keeps."""
        kept = self.kept(weights)
        return np.array([coverage(saliency, kept) for saliency in self.alone])


def _weights_along_updates(
    cover: Callable[[FloatArray], FloatArray], start: FloatArray
) -> list[tuple[FloatArray, FloatArray]]:
    """(weights, coverage) along multiplicative updates, which favour less covered corpora."""
    weights, path = start, []
    for step in range(60):
        covered = cover(weights)
        path.append((weights, covered))
        spread = float(np.ptp(covered))
        if spread == 0:
            break
        # In units of the spread: coverages are close together, to varying degrees.
        push = (covered.mean() - covered) / spread
        weights = weights * np.exp(1.0 / np.sqrt(step + 1) * push)
        weights = weights / weights.sum()
    return path


def fair_blend(blender: Blender) -> FairBlend:
    """The best weights found for the worst-covered corpus.

    Searches by multiplicative updates from equal weights and from each corpus. The kept set changes
    in jumps, so these may miss better points; for up to three corpora a grid of 0.05 is tried as
    well. Of equal points the first one tried wins.
    """
    cover, count = blender.coverage, len(blender.alone)
    rest = (1 - _STARTS_AT) / max(count - 1, 1)
    leaning = [np.where(np.arange(count) == corpus, _STARTS_AT, rest) for corpus in range(count)]
    starts = [np.full(count, 1 / count), *leaning]
    tried = [point for start in starts for point in _weights_along_updates(cover, start)]
    if count <= 3:
        for parts in product(range(_GRID + 1), repeat=count - 1):
            if sum(parts) <= _GRID:
                weights = np.array([*parts, _GRID - sum(parts)]) / _GRID
                tried.append((weights, cover(weights)))
    weights, covered = max(tried, key=lambda point: point[1].min())
    return FairBlend(tuple(weights.tolist()), tuple(covered.tolist()))
