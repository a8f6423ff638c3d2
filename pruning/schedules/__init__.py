"""Schedules: how a budget is spread over the layers.

Every schedule removes exactly the budget within the bounds of routers and constraints, so plans of
equal size are compared.
"""

from pruning.schedules.listing import (
    MEASURED,
    SCHEDULES,
    SIDE_COLUMNS,
    allocate,
    allocation_notes,
    budget_notes,
    get_schedule,
    side_by_side,
    spend,
    uneven_note,
)
from pruning.schedules.spreads import (
    PATTERNS,
    Evidence,
    Schedule,
    counts_budget,
    fit_counts,
    from_counts,
    uniform,
)

__all__ = [
    "MEASURED",
    "PATTERNS",
    "SCHEDULES",
    "SIDE_COLUMNS",
    "Evidence",
    "Schedule",
    "allocate",
    "allocation_notes",
    "budget_notes",
    "counts_budget",
    "fit_counts",
    "from_counts",
    "get_schedule",
    "side_by_side",
    "spend",
    "uneven_note",
    "uniform",
]
