"""The exact allocator: costs of each layer -> the cheapest allocation for every budget at once.

minimise sum_l c_l(k_l) subject to sum_l w_l k_l = B, with k_l in the numbers that layer l may lose.
Costs are separable, so a dynamic program over the layers is exact: the cheapest way to spend b on
the layers l.. is the cheapest of c_l(k) + (the cheapest way to spend b - w_l k on the layers after
l). One pass solves all b. Costs need be neither convex nor monotone.

Ties go to the lexicographically smallest allocation, which takes fewer from lower layers. Costs are
added from the last layer to the first, in float64.

Over several corpora, the mean cost is a sum of costs, so the program is exact for it. The maximum
is not: each weighting of the corpora gives an exact program (Lagrange), whose solution is a
candidate, and whose cost is a lower bound of every maximum. The best candidate of a grid of
weightings is taken and improved by exchanges between two layers. Where its cost equals the largest
bound it is optimal; otherwise the gap bounds the error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations_with_replacement
from math import comb
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from analysis.errors import PlanError

if TYPE_CHECKING:
    from analysis.numbers.arrays import FloatArray, IntArray

# Cells of a program's table: layers times budgets. 94 layers of 128 experts have 1.1 million.
MOST_CELLS = 1 << 27


@dataclass(frozen=True, eq=False)
class LayerChoices:
    """What one layer may lose, and at what cost."""

    removed: IntArray  # (options,) numbers removed, ascending
    costs: FloatArray  # (options,) finite, lower is better
    weight: int = 1  # budget of one removal: 1 if the budget is a number, or its bytes

    def __post_init__(self) -> None:
        if self.removed.shape != self.costs.shape or self.removed.ndim != 1:
            raise ValueError("each number removed needs one cost")
        if not len(self.removed) or (np.diff(self.removed) <= 0).any() or self.removed[0] < 0:
            raise ValueError("the numbers removed must ascend from 0 or above")
        if not np.isfinite(self.costs).all():
            raise ValueError("a cost is no finite number")
        if self.weight < 1:
            raise ValueError("a weight must be positive")


class Solution(NamedTuple):
    """The cheapest allocation of one budget."""

    total: int  # B
    removed: tuple[int, ...]  # k_l of each layer
    cost: float  # sum over the layers


@dataclass(frozen=True, eq=False)
class Solutions:
    """The cheapest allocation for every budget; see `solve`."""

    layers: tuple[LayerChoices, ...]
    unit: int  # feasible budgets are `least` plus a multiple of it
    least: int  # the smallest feasible budget
    costs: FloatArray  # (budgets,) cost of least + unit * i; infinite if infeasible
    # (layers, budgets) int32: option of a layer when so many units are left from this layer on.
    options: NDArray[np.int32]

    @cached_property
    def totals(self) -> IntArray:
        """Every feasible budget, ascending."""
        return self.least + self.unit * np.flatnonzero(np.isfinite(self.costs))

    def at(self, total: int) -> Solution:
        """The cheapest allocation of exactly this budget."""
        place, rest = divmod(total - self.least, self.unit)
        if rest or not 0 <= place < len(self.costs) or not math.isfinite(self.costs[place]):
            raise no_allocation(total, self.totals)
        return Solution(total, tuple(self._removed_at(place).tolist()), float(self.costs[place]))

    def at_least(self, total: int) -> Solution:
        """The cheapest allocation of this budget or any larger one, of equal ones the smallest."""
        totals = self.totals[self.totals >= total]
        if not len(totals):
            raise no_allocation(total, self.totals)
        costs = self.costs[(totals - self.least) // self.unit]
        return self.at(int(totals[costs.argmin()]))

    def all_removed(self) -> IntArray:
        """(totals, layers): the cheapest allocation of each of `totals`."""
        return self._removed_at((self.totals - self.least) // self.unit)

    def _removed_at(self, places: IntArray | int) -> IntArray:
        units_left, columns = np.asarray(places, dtype=np.int64), []
        for layer, options in zip(self.layers, self.options, strict=True):
            removed = layer.removed[options[units_left]]
            columns.append(removed)
            units_left = units_left - (removed - layer.removed[0]) * layer.weight // self.unit
        return np.asarray(np.stack(columns, axis=-1), dtype=np.int64)


def no_allocation(total: int, totals: IntArray) -> PlanError:
    """The error for an infeasible budget; it names the nearest feasible ones."""
    near = [*totals[totals < total][-1:].tolist(), *totals[totals > total][:1].tolist()]
    return PlanError(
        f"No allocation spends exactly {total}; nearest: {' or '.join(map(str, near))}."
    )


def solve(layers: Sequence[LayerChoices]) -> Solutions:
    """The cheapest allocation for every budget; see the module.

    Budgets are counted in the greatest common divisor of all steps of the layers, which is exact
    even where experts of different layers differ in bytes.
    """
    chosen = tuple(layers)
    steps = [(layer.removed - layer.removed[0]) * layer.weight for layer in chosen]
    unit = int(np.gcd.reduce(np.concatenate(steps))) or 1
    most = sum(int(step[-1]) for step in steps) // unit
    if len(chosen) * (most + 1) > MOST_CELLS:
        raise PlanError(
            f"{len(chosen)} layers with {most} steps in all are too many for an exact allocation; "
            "let layers lose more at a time."
        )
    costs, options = np.zeros(1), np.zeros((len(chosen), most + 1), dtype=np.int32)
    for position in reversed(range(len(chosen))):
        costs, option = _add_layer(chosen[position], steps[position] // unit, costs)
        options[position, : len(option)] = option
    least = sum(int(layer.removed[0]) * layer.weight for layer in chosen)
    return Solutions(chosen, unit, least, costs, options)


def _add_layer(
    layer: LayerChoices, steps: IntArray, after: FloatArray
) -> tuple[FloatArray, IntArray]:
    """Cost of the cheapest way to spend each number of units from a layer on, and its option.

    `after` are the costs from the next layer on. Ties go to the first option.
    """
    costs = np.full(len(after) + int(steps[-1]), np.inf)
    options = np.zeros(len(costs), dtype=np.int64)
    for option, (step, cost) in enumerate(zip(steps.tolist(), layer.costs.tolist(), strict=True)):
        reached = slice(step, step + len(after))
        totals = after + cost
        is_less = totals < costs[reached]
        costs[reached][is_less] = totals[is_less]
        options[reached][is_less] = option
    return costs, options


_MOST_WEIGHTINGS = 45
_FINEST = 32

# The layers on each corpus: the options are the same, the costs differ.
OnCorpora = Sequence[Sequence[LayerChoices]]


def weighted(corpora: OnCorpora, weights: Sequence[float]) -> tuple[LayerChoices, ...]:
    """The layers with the weighted sum of their costs over corpora."""
    return tuple(
        replace(same[0], costs=np.asarray(weights) @ np.stack([layer.costs for layer in same]))
        for same in zip(*corpora, strict=True)
    )


@dataclass(frozen=True, eq=False)
class WorstSolutions:
    """For every budget an allocation that is cheap on the worst corpus; see `solve_worst`."""

    corpora: OnCorpora
    totals: IntArray  # every feasible budget, ascending
    candidates: IntArray  # (totals, layers) numbers removed, before any exchange
    bounds: FloatArray  # (totals,) lower bound of the cost on the worst corpus

    def at(self, total: int) -> Solution:
        """The allocation of exactly this budget, and its cost on the worst corpus."""
        if total not in self.totals:
            raise no_allocation(total, self.totals)
        removed = self.candidates[int(np.searchsorted(self.totals, total))]
        cost_C = np.array([_costs(layers, removed) for layers in self.corpora])
        # Move budget between two layers as long as that helps the worst corpus, the best move
        # first. Ties go to the lower layer that loses more, then to the lower one that loses less.
        while True:
            change_CLU, offsets = _changes(self.corpora, removed)
            both_CLMU = change_CLU[:, :, None, :] + change_CLU[:, None, :, ::-1]
            diagonal = np.arange(len(removed))
            both_CLMU[:, diagonal, diagonal] = np.inf
            worst_LMU = (cost_C[:, None, None, None] + both_CLMU).max(axis=0)
            more, less, place = map(int, np.unravel_index(int(worst_LMU.argmin()), worst_LMU.shape))
            # Moves within rounding could cycle.
            if not worst_LMU[more, less, place] < cost_C.max() - 1e-12 * (1 + abs(cost_C.max())):
                return Solution(total, tuple(removed.tolist()), float(cost_C.max()))
            removed = removed.copy()
            for layer, units in ((more, offsets[place]), (less, -offsets[place])):
                removed[layer] += units // self.corpora[0][layer].weight
            cost_C = np.array([_costs(layers, removed) for layers in self.corpora])


def solve_worst(corpora: OnCorpora) -> WorstSolutions:
    """See the module. Ties go to the first weighting."""
    programs = [solve(weighted(corpora, weights)) for weights in weightings(len(corpora))]
    totals = programs[0].totals
    bounds = [program.costs[(totals - program.least) // program.unit] for program in programs]
    allocations = np.stack([program.all_removed() for program in programs])
    worst = np.stack(
        [np.max([_costs(layers, removed) for layers in corpora], axis=0) for removed in allocations]
    )
    best = allocations[worst.argmin(axis=0), np.arange(len(totals))]
    return WorstSolutions(corpora, totals, best, np.max(bounds, axis=0))


def weightings(count: int) -> list[tuple[float, ...]]:
    """An even grid on the simplex with all corners; at most 45 points up to 9 corpora."""
    parts = max(
        (n for n in range(1, _FINEST + 1) if comb(count + n - 1, n) <= _MOST_WEIGHTINGS), default=1
    )
    return [
        tuple(chosen.count(corpus) / parts for corpus in range(count))
        for chosen in combinations_with_replacement(range(count), parts)
    ]


def _costs(layers: Sequence[LayerChoices], removed: IntArray) -> FloatArray:
    """Costs of allocations (..., layers) on one corpus."""
    costs = [
        layer.costs[np.searchsorted(layer.removed, removed[..., position])]
        for position, layer in enumerate(layers)
    ]
    return np.asarray(np.sum(costs, axis=0))


def _changes(corpora: OnCorpora, removed: IntArray) -> tuple[FloatArray, IntArray]:
    """(corpora, layers, offsets) cost of moving a layer's budget by each offset, and the offsets.

    Infinite where the layer has no such option. Offsets are in units of the budget, symmetric.
    """
    steps = [
        (layer.removed - int(count)) * layer.weight
        for layer, count in zip(corpora[0], removed, strict=True)
    ]
    offsets = np.unique(np.concatenate([*steps, *(-step for step in steps)]))
    change_CLU = np.full((len(corpora), len(steps), len(offsets)), np.inf)
    for corpus, layers in enumerate(corpora):
        for position, (layer, step) in enumerate(zip(layers, steps, strict=True)):
            now = layer.costs[int(np.flatnonzero(step == 0)[0])]
            change_CLU[corpus, position, np.searchsorted(offsets, step)] = layer.costs - now
    return change_CLU, offsets
