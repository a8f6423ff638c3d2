"""Patterns: early, middle or late layers lose more (arXiv:2603.06003, initial population)."""

from typing import Literal, get_args

from pruning.apportion import apportion
from pruning.schedules.base import Turn

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
    """The budget in proportion to `pattern_weights`, by largest remainder.

    Where a layer cannot lose its share, the others lose the rest in proportion. A larger budget
    need not keep a subset: by largest remainder a layer may lose fewer when more is to go.
    """
    weights = pattern_weights(pattern, len(turn.rooms))
    return apportion(turn.spending.budget.total, weights, turn.rooms)
