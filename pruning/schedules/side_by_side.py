"""All schedules on one budget, side by side."""

from __future__ import annotations

from analysis.errors import PlanError
from analysis.lazy import pd
from pruning.schedules.base import Evidence, Spending
from pruning.schedules.listing import SCHEDULES, allocate

SIDE_COLUMNS = ("schedule", "layer", "kept", "removed")


def side_by_side(
    spending: Spending, evidence: Evidence | None = None
) -> tuple[pd.DataFrame, dict[str, str]]:
    """Table of SIDE_COLUMNS, and by schedule why it cannot spend this budget.

    Has the schedules whose evidence is there, in their listed order, one row a layer.
    """
    seen = evidence or Evidence()
    rows: list[tuple[str, int, int, int]] = []
    refused: dict[str, str] = {}
    for name, schedule in SCHEDULES.items():
        if any(getattr(seen, need) is None for need in schedule.needs):
            continue
        try:
            made = allocate(name, spending, seen)
        except PlanError as error:
            refused[name] = str(error)
            continue
        rows += [
            (name, layer.index, keep, gone)
            for layer, keep, gone in zip(made.layers, made.keep, made.removed, strict=True)
        ]
    return pd.DataFrame(rows, columns=list(SIDE_COLUMNS)), refused
