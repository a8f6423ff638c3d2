"""Schedules: how a budget is spread over the layers.

Every schedule removes exactly the budget within the bounds of routers and constraints, so plans of
equal size are compared.
"""

from analysis.numbers.sparsity import parse_sparsity
from pruning.schedules.base import Evidence, Schedule
from pruning.schedules.counts import counts_from_text, fit_counts, from_counts, read_counts
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
from pruning.schedules.ranked import fold_ranking
from pruning.schedules.shares import PATTERNS, uniform

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
    "counts_from_text",
    "fit_counts",
    "fold_ranking",
    "from_counts",
    "get_schedule",
    "parse_sparsity",
    "read_counts",
    "side_by_side",
    "spend",
    "uneven_note",
    "uniform",
]
