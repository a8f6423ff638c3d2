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
    notes = budget_notes(name, spending, allocation, evidence)
    if len(set(allocation.keep)) == 1:
        return notes
    return (
        *notes,
        f"Layers keep from {min(allocation.keep)} to {max(allocation.keep)} experts: only "
        "moeprune's loader, and readers with trust_remote_code, will read the export.",
    )


def budget_notes(
    name: str, spending: Spending, allocation: Allocation, evidence: Evidence | None = None
) -> tuple[str, ...]:
    """One line each: bounds that took effect, a budget that does not divide."""
    wanted = unbounded(name, spending, evidence or Evidence())
    removed, budget, notes = allocation.removed, spending.budget, []
    if wanted != removed:
        rows = list(zip(allocation.layers, wanted, removed, strict=True))
        fewer = [layer.index for layer, want, got in rows if got < want]
        more = [layer.index for layer, want, got in rows if got > want]
        moved = sum(max(want - got, 0) for _, want, got in rows)
        notes.append(
            f"Bounds took effect: the schedule alone would remove {moved} more from "
            f"{_named(fewer)} and as many fewer from {_named(more)}."
        )
    if name == "uniform" and not budget.floors and not spending.constraints.held:
        near = uniform_neighbours(spending.layers, budget.total)
        if near != (budget.total,):
            notes.append(
                f"{budget.total} experts do not divide over {len(removed)} layers, so layers "
                f"differ by {max(removed) - min(removed)}; the nearest sizes with one count "
                f"remove {' or '.join(map(str, near))}."
            )
    return tuple(notes)


def _named(layers: Sequence[int]) -> str:
    return f"layer{'s' if len(layers) > 1 else ''} {spans(layers)}"
