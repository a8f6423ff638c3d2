"""What a person should know of an allocation: what was moved, and which uniform sizes are near."""

from collections.abc import Sequence

from pruning.allocation import Allocation
from pruning.budget import uniform_neighbours
from pruning.constraints import spans
from pruning.schedules.base import Evidence, Spending
from pruning.schedules.listing import unbounded


def allocation_notes(
    name: str, spending: Spending, allocation: Allocation, evidence: Evidence | None = None
) -> tuple[str, ...]:
    """One line each: those of `budget_notes`, and who can read the export."""
    return (*budget_notes(name, spending, allocation, evidence), *_readers(allocation))


def budget_notes(
    name: str, spending: Spending, allocation: Allocation, evidence: Evidence | None = None
) -> tuple[str, ...]:
    """One line each: bounds that took effect, a budget that does not divide."""
    wanted = unbounded(name, spending, evidence or Evidence())
    removed = allocation.removed
    return (*_moved(allocation, wanted, removed), *_undivided(name, spending, removed))


def _moved(allocation: Allocation, wanted: Sequence[int], removed: Sequence[int]) -> list[str]:
    if tuple(wanted) == tuple(removed):
        return []
    rows = list(zip(allocation.layers, wanted, removed, strict=True))
    fewer = [layer.index for layer, want, got in rows if got < want]
    more = [layer.index for layer, want, got in rows if got > want]
    moved = sum(max(want - got, 0) for _, want, got in rows)
    return [
        f"Bounds took effect: the schedule alone would remove {moved} more from {_named(fewer)} "
        f"and as many fewer from {_named(more)}."
    ]


def _named(layers: Sequence[int]) -> str:
    return f"layer{'s' if len(layers) > 1 else ''} {spans(layers)}"


def _undivided(name: str, spending: Spending, removed: Sequence[int]) -> list[str]:
    budget = spending.budget
    if name != "uniform" or budget.kind == "sparsity" or spending.constraints.held:
        return []
    near = uniform_neighbours(spending.layers, budget.total)
    if near == (budget.total,):
        return []
    apart = max(removed) - min(removed)
    return [
        f"{budget.total} experts do not divide over {len(removed)} layers, so layers differ by "
        f"{apart}; the nearest sizes with one count remove {' or '.join(map(str, near))}."
    ]


def _readers(allocation: Allocation) -> list[str]:
    if len(set(allocation.keep)) == 1:
        return []
    return [
        f"Layers keep from {min(allocation.keep)} to {max(allocation.keep)} experts: only "
        "moeprune's loader, and readers with trust_remote_code, will read the export."
    ]
