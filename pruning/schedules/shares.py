"""Shares of a budget: the same fraction of every layer, or more of some (arXiv:2603.06003)."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Literal, get_args

from analysis.errors import PlanError
from analysis.numbers.sparsity import as_percent, parse_sparsity
from pruning.plan.allocation import Allocation, apportion, count_reason
from pruning.plan.budget import Budget, sparsity_budget
from pruning.plan.constraints import Constraints, Room, rooms_of, sum_of
from pruning.schedules.base import Evidence, Spending, Turn, allocation_of

if TYPE_CHECKING:
    from analysis.families.base import MoELayer


def uniform(
    layers: Sequence[MoELayer],
    budget: Budget | str | Fraction | Decimal | float,
    constraints: Constraints | None = None,
) -> Allocation:
    """Remove floor(rho * n) experts from every layer; `budget` may be rho itself.

    A budget without rho (a number, a target size) is spread in proportion to n, by largest
    remainder, and so is every budget if constraints keep a layer from its share.
    """
    limits = constraints or Constraints()
    if not isinstance(budget, Budget):
        budget = sparsity_budget(layers, budget, limits)
    turn = Turn(Spending(tuple(layers), budget, limits), rooms_of(layers, limits), Evidence())
    return allocation_of(layers, spread_evenly(turn))


def spread_evenly(turn: Turn) -> tuple[int, ...]:
    """See `uniform`."""
    floors = turn.spending.budget.floors
    if floors and all(room.allows(share) for room, share in zip(turn.rooms, floors, strict=True)):
        return floors
    if floors and (outliers := _out_of_bounds(turn, floors)):
        layer, room, share = outliers[0]
        keep, low, high = room.size - share, room.size - room.most, room.size - room.least
        would = f"Layer {layer.index} would keep {keep} of {room.size} experts"
        why = count_reason(layer, keep) if keep < layer.least_kept else None
        bounds = f"{would}, but layers are to keep {low} to {high}"
        raise PlanError(f"{why or bounds}; {_what_works(turn)}.")
    return apportion(turn.spending.budget.total, turn.sizes, turn.rooms)


def _out_of_bounds(turn: Turn, floors: Sequence[int]) -> list[tuple[MoELayer, Room, int]]:
    """Layers that cannot lose their share, if no constraint on them is why."""
    held_layers = turn.spending.constraints.held
    return [
        (layer, room, share)
        for layer, room, share in zip(turn.spending.layers, turn.rooms, floors, strict=True)
        if layer.index not in held_layers and not room.least <= share <= room.most
    ]


def _what_works(turn: Turn) -> str:
    """The nearest sparsities that suit every layer; without any, the nearest number of experts."""
    goal, layers = turn.spending.budget.total, turn.spending.layers
    percents = {as_percent(count, n) for n in turn.sizes for count in range(n)}
    budgets = [
        sparsity_budget(layers, text, turn.spending.constraints)
        for text in sorted(percents, key=parse_sparsity, reverse=True)
    ]
    total_room = sum_of(turn.rooms)
    totals = {
        each.total: each.text
        for each in budgets
        if total_room.allows(each.total) and not _out_of_bounds(turn, each.floors)
    }
    below = [totals[total] for total in sorted(totals) if total <= goal][-1:]
    above = [totals[total] for total in sorted(totals) if total > goal][:1]
    if below or above:
        return f"nearest sparsity that suits every layer: {' or '.join(below + above)}"
    near = total_room.nearest(goal)
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


def spread_pattern(pattern: Pattern, turn: Turn) -> tuple[int, ...]:
    """The budget in proportion to `pattern_weights`, by largest remainder, see `apportion`."""
    weights = pattern_weights(pattern, len(turn.rooms))
    return apportion(turn.spending.budget.total, weights, turn.rooms)
