"""The exact allocator: costs of each layer -> the cheapest allocation for every budget at once.

minimise sum_l c_l(k_l) subject to sum_l w_l k_l = B, with k_l in the numbers that layer l may lose.
Costs are separable, so a dynamic program over the layers is exact: the cheapest way to spend b on
the layers l.. is the cheapest of c_l(k) + (the cheapest way to spend b - w_l k on the layers after
l). One pass gives it for all b. Nothing is assumed of the costs: they need be neither convex nor
monotone.

Ties go to the allocation that takes fewer from the lower layer: of all allocations of the same cost
the lexicographically smallest. Costs are added from the last layer to the first, in float64.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from analysis.arrays import FloatArray, IntArray
from analysis.errors import PlanError

# Cells of the table of a program: layers times budgets. 94 layers of 128 experts have 1.1 million.
MOST_CELLS = 1 << 27


@dataclass(frozen=True, eq=False)
class LayerChoices:
    """What one layer may lose, and what that costs."""

    removed: IntArray  # (options,) numbers removed, ascending
    costs: FloatArray  # (options,) cost of each; finite, lower is better
    weight: int = 1  # of the budget that one removed takes: 1 of a number, or its bytes

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

    total: int  # B, that it spends
    removed: tuple[int, ...]  # k_l of each layer
    cost: float  # sum of the layers' costs


@dataclass(frozen=True, eq=False)
class Solutions:
    """The cheapest allocation for every budget; made by `solve`."""

    layers: tuple[LayerChoices, ...]
    unit: int  # budgets that can be spent are `least` plus a multiple of it
    least: int  # the smallest budget that can be spent
    costs: FloatArray  # (budgets,) cost of least + unit * i; infinite where no allocation spends it
    # (layers, budgets) int32: the option that a layer takes when so many units are left for it and
    # the layers after it.
    taken: NDArray[np.int32]

    @cached_property
    def totals(self) -> IntArray:
        """Every budget that can be spent exactly, ascending."""
        return self.least + self.unit * np.flatnonzero(np.isfinite(self.costs))

    def at(self, total: int) -> Solution:
        """The cheapest allocation that spends exactly so much."""
        place, rest = divmod(total - self.least, self.unit)
        if rest or not 0 <= place < len(self.costs) or not math.isfinite(self.costs[place]):
            raise no_allocation(f"exactly {total}", total, self.totals)
        return Solution(total, tuple(self._removed(place).tolist()), float(self.costs[place]))

    def at_least(self, total: int) -> Solution:
        """The cheapest allocation that spends so much or more; of equal costs the smaller budget.

        What a size limit asks for: bytes differ by layer, so that few limits are met to the byte.
        """
        first = max(0, -(-(total - self.least) // self.unit))
        if first >= len(self.costs) or not np.isfinite(self.costs[first:]).any():
            raise no_allocation(f"{total} or more", total, self.totals)
        place = first + int(self.costs[first:].argmin())
        return self.at(self.least + self.unit * place)

    def all_removed(self) -> IntArray:
        """(totals, layers): the cheapest allocation of each of `totals`."""
        return self._removed((self.totals - self.least) // self.unit)

    def _removed(self, places: IntArray | int) -> IntArray:
        left, columns = np.asarray(places, dtype=np.int64), []
        for layer, taken in zip(self.layers, self.taken, strict=True):
            option = taken[left]
            columns.append(layer.removed[option])
            left = left - self._steps(layer)[option]
        removed: IntArray = np.stack(columns, axis=-1)
        return removed

    def _steps(self, layer: LayerChoices) -> IntArray:
        """(options,) units of the budget that each option takes above the layer's least."""
        steps: IntArray = (layer.removed - layer.removed[0]) * layer.weight // self.unit
        return steps


def no_allocation(asked: str, total: int, totals: IntArray) -> PlanError:
    """The error that says which of the budgets that can be spent are nearest."""
    below = totals[totals < total][-1:].tolist()
    above = totals[totals > total][:1].tolist()
    near = " or ".join(map(str, below + above))
    return PlanError(f"No allocation spends {asked}; nearest: {near}.")


def solve(layers: Sequence[LayerChoices]) -> Solutions:
    """The cheapest allocation for every budget; see the module.

    Budgets are counted in the greatest common divisor of all steps that layers can take: exact also
    where one expert of a layer has more bytes than one of another.
    """
    chosen = tuple(layers)
    steps = [(each.removed - each.removed[0]) * each.weight for each in chosen]
    unit = int(np.gcd.reduce(np.concatenate(steps))) or 1
    most = sum(int(each[-1]) for each in steps) // unit
    if len(chosen) * (most + 1) > MOST_CELLS:
        raise PlanError(
            f"{len(chosen)} layers with {most} steps in all are too many for an exact allocation; "
            "let layers lose more at a time."
        )
    costs, taken = np.zeros(1), np.zeros((len(chosen), most + 1), dtype=np.int32)
    for position in reversed(range(len(chosen))):
        costs, option = _with_layer(chosen[position], steps[position] // unit, costs)
        taken[position, : len(option)] = option
    least = sum(int(each.removed[0]) * each.weight for each in chosen)
    return Solutions(chosen, unit, least, costs, taken)


def _with_layer(
    layer: LayerChoices, steps: IntArray, after: FloatArray
) -> tuple[FloatArray, IntArray]:
    """The cheapest way to spend each number of units on a layer and on those after it.

    `after` is the same of the layers after it. Also the option that the layer takes; the first of
    equal ones.
    """
    costs = np.full(len(after) + int(steps[-1]), np.inf)
    taken = np.zeros(len(costs), dtype=np.int64)
    for option, (step, cost) in enumerate(zip(steps.tolist(), layer.costs.tolist(), strict=True)):
        reached = slice(step, step + len(after))
        found = after + cost
        is_less = found < costs[reached]
        costs[reached][is_less] = found[is_less]
        taken[reached][is_less] = option
    return costs, taken
