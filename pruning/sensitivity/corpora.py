"""Allocations for several corpora: by their mean cost, or by the cost on the worst of them.

The mean is a sum of costs, so the allocator is exact for it. The worst is not: the least maximum of
several sums is not found by one program. Each weighting of the corpora gives an exact program
(Lagrange), whose cheapest allocation is a candidate, and below whose cost the worst of no
allocation can fall. Of the candidates of a grid of weightings the best is taken, with the largest
bound, and improved by exchanges between two layers while that helps. Where cost and bound are
equal, it is the optimum; else their difference says how far off it may be.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement
from math import comb

import numpy as np

from analysis.arrays import FloatArray, IntArray
from pruning.sensitivity.allocator import LayerChoices, Solution, no_allocation, solve

_MOST_WEIGHTINGS = 45
_FINEST = 32

# The same layers on each corpus: what they may lose is the same, what it costs is not.
OnCorpora = Sequence[Sequence[LayerChoices]]


def weighted(corpora: OnCorpora, weights: Sequence[float]) -> tuple[LayerChoices, ...]:
    """The layers with the weighted sum of their costs on each corpus."""
    return tuple(
        replace(same[0], costs=np.asarray(weights) @ np.stack([each.costs for each in same]))
        for same in zip(*corpora, strict=True)
    )


@dataclass(frozen=True, eq=False)
class WorstSolutions:
    """For every budget an allocation that costs little on the worst corpus; by `solve_worst`."""

    corpora: OnCorpora
    totals: IntArray  # every budget that can be spent exactly, ascending
    candidates: IntArray  # (totals, layers) numbers removed, before any exchange
    bounds: FloatArray  # (totals,) what the cost of no allocation on the worst can fall below

    def at(self, total: int) -> Solution:
        """The allocation that spends exactly so much, and its cost on the worst corpus."""
        if total not in self.totals:
            raise no_allocation(f"exactly {total}", total, self.totals)
        start = self.candidates[int(np.searchsorted(self.totals, total))]
        removed, cost = _exchanged(self.corpora, start)
        return Solution(total, tuple(removed.tolist()), cost)


def solve_worst(corpora: OnCorpora) -> WorstSolutions:
    """See the module. Ties go to the first weighting of the grid."""
    programs = [solve(weighted(corpora, weights)) for weights in weightings(len(corpora))]
    totals = programs[0].totals
    bounds = [each.costs[(totals - each.least) // each.unit] for each in programs]
    found = np.stack([each.all_removed() for each in programs])
    worst = np.stack(
        [np.max([_costs(layers, removed) for layers in corpora], axis=0) for removed in found]
    )
    best = found[worst.argmin(axis=0), np.arange(len(totals))]
    return WorstSolutions(corpora, totals, best, np.max(bounds, axis=0))


def weightings(count: int) -> list[tuple[float, ...]]:
    """An even grid on the simplex, each corner included: at most 45 points up to 9 corpora."""
    parts = max(
        (n for n in range(1, _FINEST + 1) if comb(count + n - 1, n) <= _MOST_WEIGHTINGS), default=1
    )
    return [
        tuple(chosen.count(corpus) / parts for corpus in range(count))
        for chosen in combinations_with_replacement(range(count), parts)
    ]


def _costs(layers: Sequence[LayerChoices], removed: IntArray) -> FloatArray:
    """Costs of allocations on one corpus; the last axis of `removed` are the layers."""
    each = [
        layer.costs[np.searchsorted(layer.removed, removed[..., position])]
        for position, layer in enumerate(layers)
    ]
    return np.asarray(np.sum(each, axis=0))


def _exchanged(corpora: OnCorpora, removed: IntArray) -> tuple[IntArray, float]:
    """Move budget from one layer to another as long as the worst corpus gains; the best move first.

    Ties go to the lower layer that loses more, then to the lower one that loses less.
    """
    cost_C = np.array([_costs(layers, removed) for layers in corpora])
    while True:
        change_CLU, offsets = _changes(corpora, removed)
        both_CLMU = change_CLU[:, :, None, :] + change_CLU[:, None, :, ::-1]
        own = np.arange(len(removed))
        both_CLMU[:, own, own] = np.inf
        worst_LMU = (cost_C[:, None, None, None] + both_CLMU).max(axis=0)
        more, less, place = map(int, np.unravel_index(int(worst_LMU.argmin()), worst_LMU.shape))
        # Rounding alone must not move anything, or moves could go round in circles.
        if not worst_LMU[more, less, place] < cost_C.max() - 1e-12 * (1 + abs(cost_C.max())):
            return removed, float(cost_C.max())
        removed = removed.copy()
        for layer, units in ((more, offsets[place]), (less, -offsets[place])):
            removed[layer] += units // corpora[0][layer].weight
        cost_C = np.array([_costs(layers, removed) for layers in corpora])


def _changes(corpora: OnCorpora, removed: IntArray) -> tuple[FloatArray, IntArray]:
    """(corpora, layers, offsets) cost of giving a layer so much more budget, and the offsets.

    Infinite where it cannot take exactly so much. Offsets are in units of the budget, symmetric.
    """
    steps = [
        (layer.removed - int(gone)) * layer.weight
        for layer, gone in zip(corpora[0], removed, strict=True)
    ]
    offsets = np.unique(np.concatenate([*steps, *(-each for each in steps)]))
    change_CLU = np.full((len(corpora), len(steps), len(offsets)), np.inf)
    for corpus, layers in enumerate(corpora):
        for position, (layer, step) in enumerate(zip(layers, steps, strict=True)):
            now = layer.costs[int(np.flatnonzero(step == 0)[0])]
            change_CLU[corpus, position, np.searchsorted(offsets, step)] = layer.costs - now
    return change_CLU, offsets
