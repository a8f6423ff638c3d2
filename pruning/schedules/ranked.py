"""Global schedules: the experts of all layers ranked together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from analysis.errors import PlanError
from analysis.stats.grid import Grid
from pruning.plan.units import check_total

if TYPE_CHECKING:
    import pandas as pd

    from analysis.families.base import MoELayer
    from analysis.numbers.arrays import FloatArray
    from pruning.plan.budget import Budget
    from pruning.plan.units import Removed, Units


def remove_lowest(units: Units, budget: Budget, saliency: FloatArray) -> Removed:
    """Remove the experts of lowest saliency, in whatever layer: all of them are one pool.

    What is left has the largest sum of saliency that the budget allows. Ties keep the lower layer,
    then the lower expert. The scale of saliencies may differ between layers: `rescale` maps each
    layer to [0, 1] first. With routed tokens as saliency, this is the frequency-based schedule
    (arXiv:2603.06003, Figure 1).

    `saliency` is (layers, most experts of a layer), higher = keep; NaN where there is no expert. If
    layers lose several experts at a time, these go or stay together, by their sum of saliencies.
    """
    check_total(budget.total, units)
    values = tuple(row[:size] for row, size in zip(saliency, units.sizes, strict=True))
    if any(np.isnan(row).any() for row in values):
        raise ValueError("every expert needs a saliency")
    return replace(units, pools=(len(values),), saliency=values).lowest((budget.total,))


def fold_ranking(
    ranking: pd.DataFrame, layers: Sequence[MoELayer], column: str = "saliency"
) -> FloatArray:
    """(layers, most experts of a layer) values of a ranking, independent of the order of rows."""
    grid = Grid(tuple(layers))
    layer, expert = (ranking[name].to_numpy(np.int64) for name in ("layer", "expert"))
    rows, columns = np.nonzero(grid.present)
    wide = max(int(grid.counts.max(initial=0)), int(expert.max(initial=0)) + 1)
    keys = layer * wide + expert  # one number for each expert of each layer
    wanted = np.array([layer.index for layer in layers], dtype=np.int64)[rows] * wide + columns
    order = np.argsort(keys)
    ordered = keys[order]
    places = np.searchsorted(ordered, wanted)
    is_there = places < len(ordered)
    if (
        (ordered[1:] == ordered[:-1]).any()
        or not is_there.all()
        or (ordered[places] != wanted).any()
    ):
        raise PlanError("The ranking does not hold every expert of every layer exactly once.")
    return grid.fold(ranking[column].to_numpy("float64")[order[places]])
