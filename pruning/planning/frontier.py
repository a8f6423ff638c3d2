"""The frontier that curves predict: bytes and added loss of the best plan for every budget.

With uniform plans for comparison, and measured plans to judge the predictions by.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from statistics import fmean
from typing import Final

import numpy as np

from analysis.lazy import pd
from analysis.model import MoEModel
from pruning.allocation import Removed
from pruning.budget import count_budget
from pruning.constraints import Room
from pruning.evaluate.quality import interval_of, stored_losses
from pruning.evaluate.record import EvaluationStore
from pruning.plan import PruningPlan
from pruning.planning.measured import order_of
from pruning.planning.ranking import Selection
from pruning.schedules import Spending, allocate, side_by_side
from pruning.search.store import KnownSearch
from pruning.sensitivity.curves import Sensitivity
from pruning.sizes import weight_bytes

FRONTIER_COLUMNS: Final = ("series", "removed", "bytes", "predicted", "low", "high", "measured")
BEST, UNIFORM, OTHER, SHOWN = "measured", "uniform", "other", "this plan"
_BUDGETS: Final = 32  # evenly spaced, in addition to those of measured plans


def frontier_table(
    selection: Selection,
    found: Sensitivity,
    evaluations: EvaluationStore,
    searches: tuple[KnownSearch, ...],
) -> pd.DataFrame:
    """Table of FRONTIER_COLUMNS of an order of experts; `found` are curves of the added loss.

    `predicted` is the mean over their corpora, `low` and `high` its 95% interval by bootstrap over
    the samples of each corpus; `measured` is NaN for plans that were not measured. `series` is
    "measured" for the plan that the curves prefer, "uniform", or "other" for other measured plans.
    """
    order, losses = order_of(selection, selection.request), _losses(selection, found, evaluations)
    wholes = {removed: cost for removed, cost in found.measured().items() if any(removed)}
    totals = {gone for gone, _ in losses.values()}
    others = wholes.keys() | _listed(selection, totals, searches)
    grid = _grid(order.rooms, totals | set(map(sum, wholes)))
    best = [found.solution(order.rooms, total).removed for total in grid]
    uniform = [allocate(UNIFORM, _spending(selection, total)).removed for total in grid]
    rows = [
        *((BEST, removed) for removed in best),
        *((UNIFORM, removed) for removed in uniform),
        *((OTHER, removed) for removed in sorted(others.difference(best, uniform))),
    ]
    every = np.array([removed for _, removed in rows])
    low, high = interval_of([each.predicted_by_sample(every) for each in found.curves])
    table = []
    for (series, removed), *ends in zip(rows, low, high, strict=True):
        plan = order.plan_of(removed)
        # Prefer an evaluation on held-out samples to the measurement of the curves.
        _, measured = losses.get(plan.digest, (0, wholes.get(removed, math.nan)))
        if series != OTHER or not math.isnan(measured):
            size = weight_bytes(selection.model, plan)
            numbers = (sum(removed), size, found.predicted(removed), *ends, measured)
            table.append((series, *numbers))
    return pd.DataFrame(table, columns=list(FRONTIER_COLUMNS))


def with_plan(
    table: pd.DataFrame, model: MoEModel, plan: PruningPlan, predicted: float
) -> pd.DataFrame:
    """The table with a row of the series "this plan"."""
    removed = sum(each.num_experts for each in model.layers) - sum(map(len, plan.kept.values()))
    size, unknown = weight_bytes(model, plan), math.nan
    row = (SHOWN, removed, size, predicted, unknown, unknown, unknown)
    return pd.concat([table, pd.DataFrame([row], columns=table.columns)], ignore_index=True)


def _losses(
    selection: Selection, found: Sensitivity, evaluations: EvaluationStore
) -> Mapping[str, tuple[int, float]]:
    """Digest of an evaluated plan -> experts removed, and added loss on the curves' corpora."""
    corpora, known = [each.corpus for each in found.curves], {}
    for loss in stored_losses(evaluations, selection.model.identity):
        facts = loss.facts
        is_own = facts.criterion == selection.criterion.name and facts.granularity == "expert"
        gone = (facts.experts_before or 0) - (facts.experts_after or 0)
        if is_own and gone and not loss.way and set(corpora) <= loss.change.keys():
            known[loss.plan] = (gone, fmean(loss.change[corpus] for corpus in corpora))
    return known


def _listed(
    selection: Selection, totals: Collection[int], searches: Sequence[KnownSearch]
) -> set[Removed]:
    """What schedules and searches with one of these budgets remove."""
    found = set()
    for total in totals:
        counts, _ = side_by_side(_spending(selection, total), selection.evidence)
        found |= {tuple(rows["removed"].tolist()) for _, rows in counts.groupby("schedule")}
    layers = selection.model.layers
    for each in searches:
        if each.removed in totals:
            found.add(tuple(layer.num_experts - each.kept[layer.index] for layer in layers))
    return found


def _spending(selection: Selection, total: int) -> Spending:
    return Spending(selection.model.layers, count_budget(selection.model.layers, total))


def _grid(rooms: Sequence[Room], totals: Iterable[int]) -> list[int]:
    """The budgets of the table, ascending, with the given ones."""
    most = sum(room.most for room in rooms)
    even = {most * part // _BUDGETS for part in range(_BUDGETS + 1)}
    return sorted(even | {total for total in totals if total <= most})
