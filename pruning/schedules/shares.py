"""Shares of a budget: the same fraction of every layer, or more of some (arXiv:2603.06003)."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Literal, get_args

from analysis.errors import PlanError
from analysis.numbers.sparsity import as_percent, parse_sparsity
from pruning.plan.allocation import Allocation, count_reason
from pruning.plan.budget import Budget, sparsity_budget
from pruning.plan.units import Removed, Units, apportion, expert_units
from pruning.schedules.base import Evidence, allocation_of

if TYPE_CHECKING:
    from analysis.families.base import MoELayer
    from pruning.plan.constraints import Constraints


def uniform(
    layers: Sequence[MoELayer],
    budget: Budget | str | Fraction | Decimal | float,
    constraints: Constraints | None = None,
) -> Allocation:
    """Remove floor(rho * n) experts from every layer; `budget` may be rho itself.

    A budget without rho (a number, a target size) is spread in proportion to n, by largest
    remainder, and so is every budget if constraints keep a layer from its share.
    """
    units = expert_units(layers, constraints)
    if not isinstance(budget, Budget):
        budget = sparsity_budget(units, budget)
    return allocation_of(layers, spread_evenly(units, budget, Evidence()))


def spread_evenly(units: Units, budget: Budget, _: Evidence) -> Removed:
    """The shares of the budget if each row can lose its own, else in proportion to the sizes.

    What a full pool of neurons keeps the others lose; a layer of experts that cannot lose its share
    is refused, unless a constraint on it is why.
    """
    # Shares are those of these rows, or of others.
    floors = budget.floors if len(budget.floors) == len(units.sizes) else ()
    if floors and sum(floors) == budget.total and not units.misfits(floors):
        return floors
    if floors and (outliers := _out_of_bounds(units, floors)):
        row = outliers[0]
        layer, size, keep = units.layers[row], units.sizes[row], units.sizes[row] - floors[row]
        would = f"Layer {layer.index} would keep {keep} of {size} experts"
        why = count_reason(layer, keep) if keep < layer.least_kept else None
        low, high = size - units.most[row], size - units.least[row]
        bounds = f"{would}, but layers are to keep {low} to {high}"
        raise PlanError(f"{why or bounds}; {_what_works(units, budget.total)}.")
    # A pool without neurons, as an export may leave, has no room either.
    return apportion(budget.total, [max(size, 1) for size in units.sizes], units)


def _out_of_bounds(units: Units, floors: Sequence[int]) -> list[int]:
    """Positions of layers that cannot lose their share, if no constraint on them is why."""
    held_layers = units.limits.held
    return [
        row
        for row, layer in enumerate(units.layers)
        if layer.index not in held_layers and not units.least[row] <= floors[row] <= units.most[row]
    ]


def _what_works(units: Units, goal: int) -> str:
    """The nearest sparsities that suit every layer; without any, the nearest number of experts."""
    percents = {as_percent(count, size) for size in units.sizes for count in range(size)}
    budgets = [
        sparsity_budget(units, text) for text in sorted(percents, key=parse_sparsity, reverse=True)
    ]
    totals = {
        budget.total: budget.text
        for budget in budgets
        if budget.total in units.totals and not _out_of_bounds(units, budget.floors)
    }
    below = [totals[total] for total in sorted(totals) if total <= goal][-1:]
    above = [totals[total] for total in sorted(totals) if total > goal][:1]
    if below or above:
        return f"nearest sparsity that suits every layer: {' or '.join(below + above)}"
    (near,) = units.whole.nearest([goal])
    experts = "1 expert" if near == 1 else f"{near} experts"
    return f"no sparsity suits every layer, but {experts} can go in all (--remove {near})"


Pattern = Literal["early", "middle", "late"]
PATTERNS: tuple[Pattern, ...] = get_args(Pattern)


def pattern_weights(pattern: Pattern, num_layers: int) -> list[int]:
    """How heavily each of the sparse layers l = 1..L is pruned, relative to the others.

    late: l; early: L + 1 - l; middle: min(l, L + 1 - l).
    """
    late = list(range(1, num_layers + 1))
    early = late[::-1]
    middle = [min(pair) for pair in zip(late, early, strict=True)]
    return {"early": early, "middle": middle, "late": late}[pattern]


def spread_pattern(pattern: Pattern, units: Units, budget: Budget, _: Evidence) -> Removed:
    """The budget in proportion to `pattern_weights`, by largest remainder, see `apportion`."""
    return apportion(budget.total, pattern_weights(pattern, len(units.sizes)), units)
