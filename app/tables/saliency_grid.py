"""A criterion applied to the model on screen."""

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from analysis.criteria import Criterion
from analysis.numbers.arrays import FloatArray
from analysis.ranking.experts import Stats, keeping_order, scored
from analysis.ranking.overlap import pruned_mask
from analysis.stats.columns import Gate
from analysis.stats.grid import Grid


@dataclass(frozen=True, eq=False)
class SaliencyGrid:
    """A ranking; arrays are (layers, experts), NaN = absent."""

    criterion: Criterion
    grid: Grid
    score: FloatArray
    saliency: FloatArray

    @property
    def order(self) -> NDArray[np.int64]:
        """Expert ids from first to keep to last; -1 where there are fewer."""
        order = keeping_order(self.saliency, self.grid)
        return np.where(self.grid.present, order, -1)

    def pruned(self, sparsity: Fraction) -> NDArray[np.bool_]:
        """True if the expert is pruned at this uniform sparsity."""
        return pruned_mask(self.saliency, self.grid, sparsity)


def rank(criterion: Criterion, stats: Stats, gate: Gate) -> SaliencyGrid:
    """Scores and saliency of every expert."""
    score, saliency = scored(criterion, stats, gate)
    grid = stats.grid
    return SaliencyGrid(criterion, grid, grid.fold(score), grid.fold(saliency))
