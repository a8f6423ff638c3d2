"""Layer sensitivity: a small line per layer, and a map of layers by sparsity."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from analysis.numbers.arrays import FloatArray
from app.charts.chart import Drawing, chart, of_corpora, plan_fact
from app.charts.theme import ink, muted, primary, themed
from app.charts.traces import as_float32, halo, heat, layer_axis, rows_height, signed, stroke
from pruning.measures.curves import Sensitivity
from pruning.plan.units import Removed
from pruning.planning.measured import removed_by
from pruning.planning.ranking import needs_sensitivity

if TYPE_CHECKING:
    from app.loaded import Loaded

COLUMNS: Final = ("layer", "size", "removed", "share", "added", "cut", "added_at_cut")
_CELL_PX, _LOW_CELL_PX = 110, 66  # height of a cell, for one or two rows, and for more
_WIDE, _HIGH = 0.84, 0.68  # share of a 1 x 1 cell used by its line
_COLUMNS: Final = {24: 6, 48: 8}  # layers, at most -> small lines side by side
_MOST_COLUMNS: Final = 10


def sensitivity_of(loaded: Loaded) -> Sensitivity:
    """The curves of the plan's order; if there are none, an error that says how to measure them."""
    if loaded.sensitivity is None:
        raise needs_sensitivity(loaded.ranking, loaded.ranking.spec)
    return loaded.sensitivity


def corpora_text(sensitivity: Sensitivity) -> str:
    """The corpora and samples of curves, for a sentence."""
    return ", ".join(
        sorted(f"{curve.corpus} ({curve.count.words})" for curve in sensitivity.curves)
    )


def sensitivity_table(
    sensitivity: Sensitivity, sizes: Mapping[int, int], cut: Removed
) -> pd.DataFrame:
    """Table of COLUMNS: loss that each layer alone adds, at every level of its curve.

    The mean over corpora. `sizes` are experts or neurons per layer, `cut` how many the plan prunes.
    """
    rows = []
    for place, (layer, size) in enumerate(sizes.items()):
        curves, pruned = [curve.layers[place] for curve in sensitivity.curves], cut[place]
        at_cut = float(np.mean([curve.at(pruned) for curve in curves]))
        for removed in np.unique(np.concatenate([curve.removed for curve in curves])).tolist():
            added = float(np.mean([curve.at(removed) for curve in curves]))
            rows.append((layer, size, removed, removed / size, added, pruned, at_cut))
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _draw(loaded: Loaded, figure: Callable[..., go.Figure]) -> Drawing:
    sensitivity = sensitivity_of(loaded)
    recipe, sizes = loaded.ranking, loaded.study.order(loaded.ranking).sizes
    plan = loaded.shown.plan if loaded.shown else loaded.study.plan_of(recipe)
    table = sensitivity_table(sensitivity, sizes, removed_by(plan, sizes, loaded.model))
    is_in_order = loaded.shown is None or loaded.predicted is not None
    alt = describe(table, corpora_text(sensitivity), is_in_order=is_in_order)
    curves = ", ".join(curve.name for curve in sensitivity.curves)
    about = of_corpora(loaded, plan_fact(loaded), curves)
    return Drawing(partial(figure, table), table, alt, about)


@chart("layer-sensitivity", "plan")
def draw_lines(loaded: Loaded) -> Drawing:
    """Layer sensitivity, with the plan's cut."""
    return _draw(loaded, sensitivity_lines)


@chart("layer-sensitivity-map", "plan")
def draw_layer_map(loaded: Loaded) -> Drawing:
    """What each share of a layer's experts costs, with the plan's cut."""
    return _draw(loaded, sensitivity_map)


draw_neuron_lines = draw_lines.of_neurons(
    "neuron-sensitivity", "Layer sensitivity to the loss of neurons, with the plan's cut"
)
draw_neuron_map = draw_layer_map.of_neurons(
    "neuron-sensitivity-map", "What each share of a layer's neurons costs, with the plan's cut"
)


class _Row(NamedTuple):
    """A layer of a table of COLUMNS."""

    layer: int
    size: int
    cut: int
    added_at_cut: float
    share: FloatArray  # (levels,)
    added: FloatArray  # (levels,)

    def at(self, share: float) -> float:
        """The loss increase at a sparsity."""
        return float(np.interp(share, self.share, self.added))


def _rows(table: pd.DataFrame) -> list[_Row]:
    layers = []
    for _, rows in table.groupby("layer", sort=False):
        first = rows.iloc[0]
        numbers = (int(first["layer"]), int(first["size"]), int(first["cut"]))
        levels = (rows["share"].to_numpy(), rows["added"].to_numpy())
        layers.append(_Row(*numbers, float(first["added_at_cut"]), *levels))
    return layers


def describe(table: pd.DataFrame, where: str, *, is_in_order: bool = True) -> str:
    """One sentence: the most and least sensitive layers at the plan's cut, and at one half.

    `is_in_order`: whether the plan removes what is last in the order of the curves.
    """
    rows = _rows(table)
    total, most = sum(row.added_at_cut for row in rows), max(rows, key=lambda row: row.added_at_cut)
    effect = "the plan takes nothing"
    if any(row.cut for row in rows):
        cuts = "the plan's cuts" if is_in_order else "cuts as deep as the plan's, in this order,"
        effect = (
            f"{cuts} add {total:+z.2f} nats per token in all, most of it in layer "
            f"{most.layer} ({most.added_at_cut:+z.2f} for {most.cut} of {most.size})"
        )
    by_half = sorted(rows, key=lambda row: row.at(0.5))
    least, worst = by_half[0], by_half[-1]
    return (
        f"Summed layer by layer, {effect}; half of layer {least.layer} alone costs "
        f"{least.at(0.5):+z.2f}, of layer {worst.layer} {worst.at(0.5):+z.2f} ({where})."
    )


def _top(table: pd.DataFrame) -> float:
    """Upper limit of lines and colours: above all cuts, but low enough for details."""
    cuts, most = float(table["added_at_cut"].max()), float(table["added"].max())
    return max(min(most, max(2 * cuts, most / 8)), 1e-6)


def sensitivity_lines(table: pd.DataFrame, *, dark: bool = False) -> go.Figure:
    """Figure of a table of COLUMNS: a small line of loss increase over sparsity per layer.

    All in one plot, in cells of 1 x 1: layers from left to right and from the top.
    """
    rows, top = _rows(table), _top(table)
    wide = next((n for most, n in _COLUMNS.items() if len(rows) <= most), _MOST_COLUMNS)
    corners = [(place % wide, -(place // wide)) for place in range(len(rows))]
    line_x: list[float | None] = []
    line_y: list[float | None] = []
    hover_numbers: list[tuple[float, ...]] = []
    for row, (x, y) in zip(rows, corners, strict=True):
        line_x += [*(row.share * _WIDE + x).tolist(), None]
        line_y += [*(np.clip(row.added / top, 0, 1) * _HIGH + y).tolist(), None]
        hover_numbers += [
            (row.layer, share * row.size, row.size, added)
            for share, added in zip(row.share.tolist(), signed(row.added, 3).tolist(), strict=True)
        ]
        hover_numbers.append((row.layer, 0, 0, 0))
    hover = {
        "hovertemplate": "layer %{customdata[0]} without %{customdata[1]:.0f} of %{customdata[2]}: "
        "%{customdata[3]:+.3f}<extra></extra>"
    }
    line = stroke(line_x, line_y, primary(dark), 2, name=f"loss increase, up to {top:.2g}", **hover)
    line.update(customdata=hover_numbers, hoverinfo=None, showlegend=True)
    at_cut = signed([row.added_at_cut for row in rows], 3).tolist()
    cut_y = [min(max(row.added_at_cut / top, 0), 1) * _HIGH for row in rows]
    marks = go.Scatter(
        x=[row.cut / row.size * _WIDE + x for row, (x, _) in zip(rows, corners, strict=True)],
        y=[cut + y for cut, (_, y) in zip(cut_y, corners, strict=True)],
        mode="markers",
        name="the plan's cut",
        marker={"symbol": "diamond", "size": 10, "color": ink(dark)},
        customdata=[
            (row.layer, row.cut, row.size, cost) for row, cost in zip(rows, at_cut, strict=True)
        ],
        **hover,
    )
    base_x = [value for start, _ in corners for value in (start, start + _WIDE, None)]
    base_y = [value for _, low in corners for value in (low, low, None)]
    zeros = stroke(base_x, base_y, muted(dark), 1)
    high = -(-len(rows) // wide)
    hidden = {"showticklabels": False, "showgrid": False, "showline": False}
    return themed(
        [zeros, line, _names(rows, corners, dark), marks],
        dark,
        x={
            **hidden,
            "range": [-0.06, min(wide, len(rows)) - 0.06],
            "title": "sparsity of each layer",
        },
        y={**hidden, "range": [0.9 - high, 0.85]},
        height=70 + high * (_CELL_PX if high < 3 else _LOW_CELL_PX),
        showlegend=True,
    )


def _names(rows: list[_Row], corners: list[tuple[int, int]], dark: bool) -> go.Scatter:
    """The number of each layer, in its cell."""
    return go.Scatter(
        x=[x for x, _ in corners],
        y=[y + _HIGH for _, y in corners],
        text=[str(row.layer) for row in rows],
        mode="text",
        textposition="bottom right",
        textfont={"color": muted(dark)},
        hoverinfo="skip",
        showlegend=False,
    )


def sensitivity_map(table: pd.DataFrame, *, dark: bool = False) -> go.Figure:
    """Figure of a table of COLUMNS: a row per layer, a column per level, colour the loss increase.

    The plan's cut is a line across each row.
    """
    rows, top = _rows(table), _top(table)
    shares = np.unique(table["share"].round(6))
    shares = shares[shares > 0]
    cells = np.array([np.interp(shares, row.share, row.added, right=np.nan) for row in rows])
    layers = [row.layer for row in rows]
    cells_shown = heat(
        as_float32(signed(cells, 3)),
        "loss increase",
        dark,
        {"tickformat": "+.2~f"},
        x=as_float32(shares),
        zmin=0,
        zmax=top,
        customdata=np.repeat(layers, len(shares)).reshape(cells.shape),
        hovertemplate="layer %{customdata} without %{x:.0%}: %{z:+.3f}<extra></extra>",
    )
    cuts = [row.cut / row.size for row in rows]
    x = [value for cut in cuts for value in (cut, cut, None)]
    y = [value for place in range(len(cuts)) for value in (place - 0.45, place + 0.45, None)]
    marks = [stroke(x, y, color, width) for color, width in halo(dark, 3)]
    return themed(
        [cells_shown, *marks],
        dark,
        x={
            "title": "sparsity; line: the plan's cut",
            "tickformat": ".0%",
            "showgrid": False,
        },
        y=layer_axis(layers, title="layer"),
        height=rows_height(layers, 26, 70),
    )
