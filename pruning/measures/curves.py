"""Curves: what removal costs in each layer alone, and the allocations that follow.

The cost of an allocation is -ln of its mean ESAP, its mean KL from the original, or its loss
increase; 0 if nothing is removed. Curves are linear between measured levels. Costs of layers are
assumed to add up, which is not quite true, so predicted allocations are measured again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from analysis.cache_keys import IdentityKey
from analysis.errors import PlanError
from pruning.measures.allocator import (
    LayerChoices,
    Solution,
    Solutions,
    WorstSolutions,
    solve,
    solve_worst,
    weighted,
)
from pruning.measures.points import MEASURES, WHOLE, Point, Points
from pruning.measures.result import SampleCount
from pruning.plan.units import check_total

if TYPE_CHECKING:
    from analysis.numbers.arrays import FloatArray, IntArray
    from pruning.measures.names import Across, CostName
    from pruning.plan.units import Removed, Units

# Options per layer at most; of more, every second, third ... is used.
MOST_OPTIONS = 512
# Measured allocations with which a search starts, besides the solution of the curves.
MOST_STARTS = 6
_LEAST_ESAP = 1e-9


class Curve(NamedTuple):
    """Costs of one layer."""

    removed: IntArray  # (levels,) ascending
    costs: FloatArray  # (levels,)

    def at(self, level: float) -> float:
        """The cost of this removal, linear between levels."""
        return float(np.interp(level, self.removed, self.costs))


@dataclass(frozen=True, eq=False)
class Curves:
    """The curves of all layers on the samples of one corpus."""

    layers: tuple[Curve, ...]  # one per layer with experts
    measured: Mapping[Removed, float]  # whole allocations -> cost on the same samples
    name: str = ""  # of the record
    corpus: str = ""
    samples: int = 0
    # For loss increases: (levels, samples) of each layer.
    by_sample: tuple[FloatArray, ...] = ()
    # The document of each sample, see `SampleValues`; None if unknown.
    documents: tuple[int, ...] | None = None

    @property
    def count(self) -> SampleCount:
        """How many samples of how many documents."""
        documents = None if self.documents is None else len(set(self.documents))
        return SampleCount(self.samples, documents)

    def choices(self, units: Units, step: int) -> tuple[LayerChoices, ...]:
        """Options of each layer, every `step`-th number that it can lose, with their costs."""
        choices = []
        for curve, least, most in zip(self.layers, units.least, units.most, strict=True):
            removed = np.arange(least, most + 1, step)
            last = curve.removed[-1]
            levels = removed[(removed >= curve.removed[0]) & (removed <= last)]
            if not len(levels):
                raise PlanError(
                    f"A layer loses at least {least} here, and its curve ends at {last}; "
                    "measure it further with `moeprune sensitivity`."
                )
            choices.append(LayerChoices(levels, np.interp(levels, *curve)))
        return tuple(choices)

    def within(self, base: Removed, levels: int) -> Curves:
        """The curves cut to this many levels on each side of a measured plan."""
        curves = []
        for curve, level in zip(self.layers, base, strict=True):
            at = int(np.searchsorted(curve.removed, level))
            part = slice(max(0, at - levels), at + levels + 1)
            curves.append(Curve(curve.removed[part], curve.costs[part]))
        return replace(self, layers=tuple(curves))

    def predicted(self, removed: Sequence[int]) -> float:
        """The sum of the layers' costs."""
        return math.fsum(curve.at(n) for n, curve in zip(removed, self.layers, strict=True))

    def predicted_by_sample(self, allocations: IntArray) -> FloatArray:
        """(samples, allocations) loss increase of `allocations` (allocations, layers).

        The mean over samples is `predicted`.
        """
        increases = np.zeros((self.samples, len(allocations)))
        for levels, curve, costs in zip(allocations.T, self.layers, self.by_sample, strict=True):
            increases += np.array([np.interp(levels, curve.removed, row) for row in costs.T])
        return increases


def cost_at(points: Points, removed: Removed, measure: CostName, samples: Sequence[str]) -> float:
    """The cost of an allocation on these samples, on which it and the original were measured."""
    place = MEASURES.index(measure)
    nothing = (0,) * len(removed)
    mean, before = (
        float(points.values(allocation, samples)[:, place].mean())
        for allocation in (removed, nothing)
    )
    if measure == "esap":
        return -math.log(max(mean, _LEAST_ESAP))
    return mean - before if measure == "nll" else mean


def from_cost(measure: CostName, cost: float) -> float:
    """A cost for display: ESAP itself; others unchanged."""
    return math.exp(-cost) if measure == "esap" else cost


def curves_of(
    points: Points, layers: int, measure: CostName, samples: Sequence[str] = ()
) -> Curves | None:
    """The curves on these samples, by default on all samples of the original model.

    Points that lack samples are left out; None if a layer has no level besides 0.
    """
    chosen = tuple(samples) or points.samples()
    nothing = (0,) * layers
    if not chosen or not points.knows(nothing, chosen):
        return None
    layer_costs: list[dict[int, float]] = [{0: 0.0} for _ in range(layers)]
    measured = {nothing: 0.0}
    for point in points.on_all(chosen):
        cost = cost_at(points, point.removed, measure, chosen)
        changed = [position for position, level in enumerate(point.removed) if level]
        if len(changed) == 1:
            layer_costs[changed[0]][point.removed[changed[0]]] = cost
        if point.position == WHOLE:
            measured[point.removed] = cost
    if any(len(levels) < 2 for levels in layer_costs):
        return None
    return Curves(
        tuple(map(_curve, layer_costs)),
        measured,
        samples=len(chosen),
        documents=points.documents(chosen),
    )


def with_samples(curves: Curves, points: Points) -> Curves:
    """Curves of the loss increase with `by_sample`."""
    chosen, place = points.samples(), MEASURES.index("nll")
    nothing = (0,) * len(curves.layers)

    def losses(position: int, level: int) -> FloatArray:
        removed = (*nothing[:position], level, *nothing[position + 1 :])
        return points.values(removed, chosen)[:, place]

    increases = tuple(
        np.stack([losses(at, level) - losses(at, 0) for level in curve.removed.tolist()])
        for at, curve in enumerate(curves.layers)
    )
    return replace(curves, by_sample=increases)


def moved_curves(
    points: Points, moves: Sequence[Point], measure: CostName, samples: Sequence[str]
) -> Curves:
    """Curves around a plan: the first layer's have the plan's cost, the others what moves add.

    `moves` are measured points whose base is the plan.
    """
    base = moves[0].base
    base_cost = cost_at(points, base, measure, samples)
    layer_costs: list[dict[int, float]] = [{level: 0.0} for level in base]
    for point in moves:
        if point.position != WHOLE:
            cost = cost_at(points, point.removed, measure, samples)
            layer_costs[point.position][point.level] = cost - base_cost
    # Of several corpora, the worst depends on what the plan itself costs on each.
    layer_costs[0] = {level: base_cost + more for level, more in layer_costs[0].items()}
    return Curves(
        tuple(map(_curve, layer_costs)),
        {base: base_cost},
        samples=len(samples),
        documents=points.documents(samples),
    )


def _curve(levels: Mapping[int, float]) -> Curve:
    removed = sorted(levels)
    return Curve(np.array(removed), np.array([levels[level] for level in removed]))


@dataclass(frozen=True, eq=False)
class Sensitivity(IdentityKey):
    """The curves of an order on one or more corpora, and the allocations that follow."""

    curves: tuple[Curves, ...]
    measure: CostName = "esap"
    across: Across = "mean"  # how costs of several corpora combine
    _solved: dict[Units, Solutions | WorstSolutions] = field(default_factory=dict)

    def spend(self, units: Units, total: int) -> Removed:
        """The best measured allocation of a budget, or else the predicted one; rows are layers."""
        if costs := self._fitting(units, total):
            return min(costs, key=lambda removed: (costs[removed], removed))
        return self.solution(units, total).removed

    def starts(self, units: Units, total: int) -> dict[str, Removed]:
        """Starts of a search: the best measured allocations, and the predicted one."""
        best = sorted((cost, removed) for removed, cost in self._fitting(units, total).items())
        allocations = [removed for _, removed in best[:MOST_STARTS]]
        allocations = list(dict.fromkeys([*allocations, self.solution(units, total).removed]))
        return {f"measured {number}": removed for number, removed in enumerate(allocations, 1)}

    def _fitting(self, units: Units, total: int) -> dict[Removed, float]:
        """Measured allocations of a budget that the layers can lose, with their costs."""
        return {
            removed: cost
            for removed, cost in self.measured().items()
            if sum(removed) == total and not units.misfits(removed)
        }

    def to_dict(self) -> dict[str, Any]:
        """What plans record of it, as plain JSON."""
        return {
            "sensitivity": [curve.name for curve in self.curves],
            "corpora": [curve.corpus for curve in self.curves],
            "samples": [curve.samples for curve in self.curves],
            "cost": self.measure,
            **({"across": self.across} if len(self.curves) > 1 else {}),
        }

    def note(self, removed: Removed) -> str:
        """The cost of an allocation in one line: measured, or predicted by the curves."""
        measured = self.measured().get(removed)
        origin, cost = ("Measured", measured) if measured is not None else ("Predicted", None)
        cost = self.predicted(removed) if cost is None else cost
        where = ", ".join(f"{curve.corpus} ({curve.count.words})" for curve in self.curves)
        which = f", {self.across} of" if len(self.curves) > 1 else " on"
        added = "loss increase" if self.measure == "nll" else self.measure.upper()
        return f"{origin} {added}: {from_cost(self.measure, cost):.4f}{which} {where}"

    def measured(self) -> dict[Removed, float]:
        """Cost of each whole allocation that was measured on every corpus."""
        shared = set.intersection(*(set(curve.measured) for curve in self.curves))
        return {
            removed: self.over([curve.measured[removed] for curve in self.curves])
            for removed in shared
        }

    def predicted(self, removed: Sequence[int]) -> float:
        """The cost of an allocation by the curves."""
        return self.over([curve.predicted(removed) for curve in self.curves])

    def over(self, costs: Sequence[float]) -> float:
        """The mean or the worst of what something costs on each corpus."""
        return max(costs) if self.across == "worst" else math.fsum(costs) / len(costs)

    def solution(self, units: Units, total: int) -> Solution:
        """The cheapest allocation of a budget by the curves.

        Exact, unless a layer has more than MOST_OPTIONS options: then on a grid of that many, and
        the rest, less than one step of the grid, goes where it costs least.
        """
        check_total(total, units)
        solved, coarse = self.solutions(units), units.step * _stride(units)
        reached = min(total - (total - sum(units.least)) % coarse, int(solved.totals[-1]))
        removed = list(solved.at(reached).removed)
        rest = total - reached
        while rest:
            rest -= self._give(removed, units, rest)
        return Solution(total, tuple(removed), self.predicted(removed))

    def solutions(self, units: Units) -> Solutions | WorstSolutions:
        """The cheapest allocations for every budget at once, on the grid."""
        if units not in self._solved:
            step = units.step * _stride(units)
            corpora = [curve.choices(units, step) for curve in self.curves]
            even = (1 / len(corpora),) * len(corpora)
            is_worst = self.across == "worst" and len(corpora) > 1
            solved = solve_worst(corpora) if is_worst else solve(weighted(corpora, even))
            self._solved[units] = solved
        return self._solved[units]

    def _give(self, removed: list[int], units: Units, rest: int) -> int:
        """Remove up to `rest` more from the layer where each costs least; returns how many."""
        now, options = self.predicted(removed), []
        for position, most in enumerate(units.most):
            if more := min(rest, most - removed[position]):
                after = [*removed[:position], removed[position] + more, *removed[position + 1 :]]
                options.append(((self.predicted(after) - now) / more, position, more))
        _, position, more = min(options)
        removed[position] += more
        return more


def _stride(units: Units) -> int:
    """Step of the grid of options, in steps of the units."""
    widest = max(most - least for least, most in zip(units.least, units.most, strict=True))
    return -(-widest // (units.step * MOST_OPTIONS)) or 1
