"""Allocations that a search starts from: uniform, patterns, and the recipe's own schedule."""

from dataclasses import replace

from pruning.allocation import Allocation
from pruning.constraints import rooms_of
from pruning.schedules import PATTERNS, Spending, allocate
from pruning.search.space import Removed, Space


def space_of(spending: Spending, scheduled: Allocation) -> tuple[Spending, Space]:
    """The feasible set of a spending; locked layers keep what the schedule gave them."""
    limits = spending.constraints
    counts = scheduled.counts
    fixed = {**limits.fixed, **{index: counts[index] for index in limits.locked}}
    settled = replace(limits, fixed=fixed, locked=frozenset())
    space = Space(rooms_of(spending.layers, settled), spending.budget.total)
    return replace(spending, constraints=settled), space


def seeds_of(spending: Spending, name: str, scheduled: Allocation) -> dict[str, Removed]:
    """Schedule -> its allocation: uniform, early, middle, late, and the one asked for.

    `scheduled` is what the schedule `name` gives; the spending has no locked layers, see
    `space_of`.
    """
    # Without shares of single layers, uniform is by largest remainder, which is always possible.
    floors = spending.budget.floors
    space = Space(rooms_of(spending.layers, spending.constraints), spending.budget.total)
    even = spending
    if floors and not space.holds(floors):
        even = replace(spending, budget=replace(spending.budget, floors=()))
    seeds = {"uniform": allocate("uniform", even).removed}
    seeds |= {pattern: allocate(pattern, spending).removed for pattern in PATTERNS}
    return {**seeds, name: scheduled.removed} if name not in seeds else seeds
