"""Patterns: early, middle or late layers lose more (arXiv:2603.06003, initial population)."""

from collections.abc import Sequence
from typing import Literal, get_args

from analysis.errors import UserError, unknown_name
from analysis.families import MoELayer
from pruning.allocation import Allocation
from pruning.apportion import apportion
from pruning.budget import Budget
from pruning.constraints import Constraints, rooms_of
from pruning.schedules.base import Evidence, Spending, Turn, allocation_of

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


def patterned(
    layers: Sequence[MoELayer],
    budget: Budget,
    pattern: Pattern,
    constraints: Constraints | None = None,
) -> Allocation:
    """The budget in proportion to `pattern_weights`, by largest remainder.

    Where a layer cannot lose its share, the others lose the rest in proportion. A larger budget
    need not keep a subset: by largest remainder a layer may lose fewer when more is to go.
    """
    if pattern not in PATTERNS:
        raise UserError(unknown_name("pattern", pattern, PATTERNS))
    limits = constraints or Constraints()
    turn = Turn(Spending(tuple(layers), budget, limits), rooms_of(layers, limits), Evidence())
    return allocation_of(layers, spread_pattern(pattern, turn))


def spread_pattern(pattern: Pattern, turn: Turn) -> tuple[int, ...]:
    """See `patterned`."""
    weights = pattern_weights(pattern, len(turn.rooms))
    return apportion(turn.spending.budget.total, weights, turn.rooms)
