"""The frontier that curves predict: bytes and loss increase of the best plan for every budget.

With uniform plans for comparison, and measured plans to judge the predictions by.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

import numpy as np

from analysis.lazy import pd
from pruning.measures.sum_error import SumError
from pruning.plan.budget import count_budget
from pruning.plan.units import Removed, Units, expert_units
from pruning.planning.measured import Order, order_of
from pruning.planning.ranking import Ranking
from pruning.schedules import spend

FRONTIER_COLUMNS: Final = ("series", "removed", "bytes", "predicted", "low", "high", "measured")
BEST, UNIFORM, OTHER, SHOWN = "measured", "uniform", "other", "this plan"
_BUDGETS: Final = 32  # evenly spaced, in addition to those of measured plans


def frontier_table(ranking: Ranking, error: SumError) -> pd.DataFrame:
    """Table of FRONTIER_COLUMNS of an order, by its curves of the loss increase.

    `predicted` is the mean over their corpora, without what was measured of the plan itself, `low`
    and `high` its 95% band, see `SumError`; `measured` is NaN for plans that were not measured.
    `series` is "measured" for the plan that the curves prefer, "uniform", or "other" for other
    measured plans. `removed` are experts or neurons, and `bytes` those of the weights, of neurons
    without padding.
    """
    order = order_of(ranking, ranking.spec)
    known = [plan for plan in error.known if not math.isnan(error.measured(plan))]
    grid = _grid(order.units, map(sum, known))
    best = [error.curves.solution(order.units, total).removed for total in grid]
    uniform = [_even(ranking, order, total) for total in grid]
    rows = [
        *((BEST, removed) for removed in best),
        *((UNIFORM, removed) for removed in uniform),
        *((OTHER, removed) for removed in sorted(set(known).difference(best, uniform))),
    ]
    mean, _ = error.bands(np.array([removed for _, removed in rows]))
    table = [
        (series, sum(removed), order.bytes_of(removed), *numbers, error.measured(removed))
        for (series, removed), *numbers in zip(rows, *mean, strict=True)
    ]
    return pd.DataFrame(table, columns=list(FRONTIER_COLUMNS))


def with_plan(table: pd.DataFrame, order: Order, removed: Removed, error: SumError) -> pd.DataFrame:
    """The table with a row of the series "this plan", which is in the order."""
    mean, _ = error.bands(np.array([removed]))
    numbers = (float(column[0]) for column in mean)
    size, measured = order.bytes_of(removed), error.measured(removed)
    row = (SHOWN, sum(removed), size, *numbers, measured)
    return pd.concat([table, pd.DataFrame([row], columns=table.columns)], ignore_index=True)


def _even(ranking: Ranking, order: Order, total: int) -> Removed:
    """The same share of every layer; of experts whatever is pinned or dropped."""
    units = order.units if ranking.by_neuron else expert_units(ranking.model.layers)
    return spend(UNIFORM, units, count_budget(units, total))


def _grid(units: Units, totals: Iterable[int]) -> list[int]:
    """The budgets of the table, ascending, with the given ones."""
    known, step = units.totals, units.step
    least, steps = known[0], len(known) - 1
    even = {least + step * (steps * part // _BUDGETS) for part in range(_BUDGETS + 1)}
    return sorted(even | {total for total in totals if total in known})
