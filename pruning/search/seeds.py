"""Allocations that a search starts from: uniform, patterns, and the recipe's own schedule."""

from dataclasses import replace

from analysis.families import MoELayer
from pruning.allocation import Allocation
from pruning.constraints import rooms_of
from pruning.schedules import PATTERNS, Spending, allocate
from pruning.search.space import Removed, Space


def removed_of(allocation: Allocation) -> Removed:
    """r of an allocation, in order of the layers."""
    pairs = zip(allocation.layers, allocation.keep, strict=True)
    return tuple(layer.num_experts - keep for layer, keep in pairs)


def allocation_of(layers: tuple[MoELayer, ...], removed: Removed) -> Allocation:
    """The inverse of `removed_of`."""
    pairs = zip(layers, removed, strict=True)
    return Allocation(layers, tuple(layer.num_experts - gone for layer, gone in pairs))


def space_of(spending: Spending, scheduled: Allocation) -> tuple[Spending, Space]:
    """The feasible set of a spending; locked layers keep what the schedule gave them.

    Raises:
        PlanError: the layers cannot meet the budget.
    """
    limits = spending.constraints
    kept = {layer.index: keep for layer, keep in zip(scheduled.layers, scheduled.keep, strict=True)}
    fixed = {**limits.fixed, **{index: kept[index] for index in limits.locked}}
    settled = replace(limits, fixed=fixed, locked=frozenset())
    space = Space(rooms_of(spending.layers, settled), spending.budget.total)
    return replace(spending, constraints=settled), space


def seeds_of(spending: Spending, name: str, scheduled: Allocation) -> dict[str, Removed]:
    """Schedule -> its allocation: uniform, early, middle, late, and the one asked for.

    Args:
        spending: without locked layers, see `space_of`.
        name: of the schedule asked for.
        scheduled: what it gives.
    """
    # Without shares of single layers, uniform is by largest remainder, which is always possible.
    floors = spending.budget.floors
    space = Space(rooms_of(spending.layers, spending.constraints), spending.budget.total)
    even = spending
    if floors and not space.holds(floors):
        even = replace(spending, budget=replace(spending.budget, floors=()))
    seeds = {"uniform": removed_of(allocate("uniform", even))}
    seeds |= {pattern: removed_of(allocate(pattern, spending)) for pattern in PATTERNS}
    return {**seeds, name: removed_of(scheduled)} if name not in seeds else seeds
