"""The frontier that curves predict: bytes and loss increase of the best plan for every budget.

With uniform plans for comparison, and measured plans to judge the predictions by.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from statistics import fmean
from typing import Final

import numpy as np

from analysis.lazy import pd
from pruning.allocation import Removed
from pruning.budget import Budget, count_budget
from pruning.constraints import Room
from pruning.evaluate.quality import interval_of, stored_losses
from pruning.evaluate.record import EvaluationStore
from pruning.neurons.budget import shares_of
from pruning.neurons.selection import NeuronScope
from pruning.planning.measured import Order, order_of
from pruning.planning.neurons import arena_of
from pruning.planning.ranking import Selection
from pruning.schedules import Spending, allocate, side_by_side
from pruning.search.store import KnownSearch
from pruning.sensitivity.curves import Sensitivity
from pruning.spec import SpreadSpec

FRONTIER_COLUMNS: Final = ("series", "removed", "bytes", "predicted", "low", "high", "measured")
BEST, UNIFORM, OTHER, SHOWN = "measured", "uniform", "other", "this plan"
_BUDGETS: Final = 32  # evenly spaced, in addition to those of measured plans


def frontier_table(
    selection: Selection,
    found: Sensitivity,
    evaluations: EvaluationStore,
    searches: tuple[KnownSearch, ...],
) -> pd.DataFrame:
    """Table of FRONTIER_COLUMNS of an order; `found` are curves of the loss increase.

    `predicted` is the mean over their corpora, `low` and `high` its 95% interval by bootstrap over
    the samples of each corpus; `measured` is NaN for plans that were not measured. `series` is
    "measured" for the plan that the curves prefer, "uniform", or "other" for other measured plans.
    `removed` are experts or neurons, and `bytes` those of the weights, of neurons without padding.
    """
    order = order_of(selection, selection.spec)
    losses = _losses(selection, order, found, evaluations)
    wholes = {removed: cost for removed, cost in found.measured().items() if any(removed)}
    totals = {gone for gone, _ in losses.values()}
    grid = _grid(order.rooms, totals | set(map(sum, wholes)))
    totals &= set(grid)
    others = wholes.keys() | _listed(selection, order, totals, searches)
    best = [found.solution(order.rooms, total).removed for total in grid]
    uniform = [_even(selection, order, total) for total in grid]
    rows = [
        *((BEST, removed) for removed in best),
        *((UNIFORM, removed) for removed in uniform),
        *((OTHER, removed) for removed in sorted(others.difference(best, uniform))),
    ]
    every = np.array([removed for _, removed in rows])
    low, high = interval_of([each.predicted_by_sample(every) for each in found.curves])
    table = []
    for (series, removed), *ends in zip(rows, low, high, strict=True):
        measured = wholes.get(removed, math.nan)
        if sum(removed) in totals:
            # Prefer an evaluation on held-out samples to the measurement of the curves.
            _, measured = losses.get(order.plan_of(removed).digest, (0, measured))
        if series != OTHER or not math.isnan(measured):
            size = order.bytes_of(removed)
            numbers = (sum(removed), size, found.predicted(removed), *ends, measured)
            table.append((series, *numbers))
    return pd.DataFrame(table, columns=list(FRONTIER_COLUMNS))


def with_plan(
    table: pd.DataFrame, order: Order, removed: Removed, predicted: float
) -> pd.DataFrame:
    """The table with a row of the series "this plan", which is in the order."""
    size, unknown = order.bytes_of(removed), math.nan
    row = (SHOWN, sum(removed), size, predicted, unknown, unknown, unknown)
    return pd.concat([table, pd.DataFrame([row], columns=table.columns)], ignore_index=True)


def _losses(
    selection: Selection, order: Order, found: Sensitivity, evaluations: EvaluationStore
) -> Mapping[str, tuple[int, float]]:
    """Digest of an evaluated plan -> number removed, and loss increase on the curves' corpora.

    The curves predict plans without a repair, with weights as they are; others do not count.
    """
    corpora, known, size = [n.corpus for n in found.curves], {}, sum(order.sizes.values())
    for loss in stored_losses(evaluations, selection.model.identity):
        facts = loss.facts
        own = (selection.criterion.name, order.ref.granularity)
        gone = (facts.experts_before or 0) - (facts.experts_after or 0)
        if selection.by_neuron:
            gone = round((facts.removed or 0) * size)
        is_own = (facts.criterion, facts.granularity) == own
        if (
            is_own
            and gone
            and not (loss.way or loss.is_repaired or facts.bits)
            and set(corpora) <= loss.change.keys()
        ):
            known[loss.plan] = (gone, fmean(loss.change[corpus] for corpus in corpora))
    return known


def _even(selection: Selection, order: Order, total: int) -> Removed:
    """The same share of every layer."""
    if not selection.by_neuron:
        return allocate(UNIFORM, _spending(selection, total)).removed
    return shares_of(order.rooms, Budget(total, "count", str(total)))


def _listed(
    selection: Selection,
    order: Order,
    totals: Collection[int],
    searches: Sequence[KnownSearch],
) -> set[Removed]:
    """What schedules and searches with one of these budgets remove; of neurons, all together."""
    if selection.by_neuron:
        is_within = selection.criterion.within_layers
        return set() if is_within else {_global(selection, order, total) for total in totals}
    found = set()
    for total in totals:
        counts, _ = side_by_side(_spending(selection, total), selection.evidence)
        found |= {tuple(rows["removed"].tolist()) for _, rows in counts.groupby("schedule")}
    layers = selection.model.layers
    for each in searches:
        if each.removed in totals:
            found.add(tuple(layer.num_experts - each.kept[layer.index] for layer in layers))
    return found


def _global(selection: Selection, order: Order, total: int) -> Removed:
    """What each layer loses if the neurons of all layers compete."""
    spread = SpreadSpec(neuron_scope=str(NeuronScope.GLOBAL))
    contest = arena_of(selection, selection.spec.model_copy(update={"spread": spread})).contest
    gone = dict.fromkeys(order.sizes, 0)
    for (layer, _), number in contest.removed(Budget(total, "count", str(total))).items():
        gone[layer] += number
    return tuple(gone.values())


def _spending(selection: Selection, total: int) -> Spending:
    return Spending(selection.model.layers, count_budget(selection.model.layers, total))


def _grid(rooms: Sequence[Room], totals: Iterable[int]) -> list[int]:
    """The budgets of the table, ascending, with the given ones."""
    least, most = (sum(getattr(room, end) for room in rooms) for end in ("least", "most"))
    step = rooms[0].step
    steps = (most - least) // step
    even = {least + step * (steps * part // _BUDGETS) for part in range(_BUDGETS + 1)}
    known = range(least, most + 1, step)
    return sorted(even | {total for total in totals if total in known})
