"""Global schedules: the experts of all layers ranked together."""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum
from typing import TYPE_CHECKING

import numpy as np

from analysis.errors import PlanError
from analysis.lazy import pd
from analysis.stats.grid import Grid
from pruning.plan.constraints import Room, check_total, order_within

if TYPE_CHECKING:
    from analysis.families.base import MoELayer
    from analysis.numbers.arrays import FloatArray
    from pruning.schedules.base import Turn


def remove_lowest(turn: Turn, saliency: FloatArray) -> tuple[int, ...]:
    """Remove the experts of lowest saliency, in whatever layer.

    What is left has the largest sum of saliency that the budget allows. Ties keep the lower layer,
    then the lower expert. The scale of saliencies may differ between layers: `rescale` maps each
    layer to [0, 1] first. With routed tokens as saliency, this is the frequency-based schedule
    (arXiv:2603.06003, Figure 1).

    `saliency` is (layers, most experts of a layer), higher = keep; NaN where there is no expert. If
    layers lose several experts at a time, these go or stay together, by their sum of saliencies.
    """
    total = turn.spending.budget.total
    check_total(total, turn.rooms)
    costs = [
        (cost, -position, turn_of_layer)
        for position, room in enumerate(turn.rooms)
        for turn_of_layer, cost in enumerate(_step_costs(saliency[position], room))
    ]
    # Within a layer costs never fall from one step to the next, so the cheapest steps overall are
    # the first steps of each layer.
    removed, step = [room.least for room in turn.rooms], turn.rooms[0].step
    for _, negative, _ in sorted(costs)[: (total - sum(removed)) // step]:
        removed[-negative] += step
    return tuple(removed)


def _step_costs(saliency: FloatArray, room: Room) -> list[float]:
    """Saliency lost by each further step of a layer, from the fewest removed to the most."""
    values: list[float] = saliency[: room.size].tolist()
    if np.isnan(values).any():
        raise ValueError("every expert needs a saliency")
    size = room.size // room.groups
    queues = []
    for group in range(room.groups):
        experts = range(group * size, (group + 1) * size)
        by_saliency = sorted(experts, key=lambda expert: (-values[expert], expert))
        queues.append(order_within(by_saliency, room.pinned, room.dropped)[::-1])
    each = room.step // room.groups
    starts = range(room.least // room.groups, room.most // room.groups, each)
    return [
        fsum(values[expert] for queue in queues for expert in queue[start : start + each])
        for start in starts
    ]


def fold_ranking(
    ranking: pd.DataFrame, layers: Sequence[MoELayer], column: str = "saliency"
) -> FloatArray:
    """(layers, most experts of a layer) values of a ranking, independent of the order of rows."""
    grid = Grid(tuple(layers))
    index = pd.MultiIndex.from_frame(grid.index())
    values = ranking.set_index(["layer", "expert"])[column]
    if values.index.has_duplicates or not index.isin(values.index).all():
        raise PlanError("The ranking does not hold every expert of every layer exactly once.")
    return grid.fold(values.loc[index].astype("float64"))
