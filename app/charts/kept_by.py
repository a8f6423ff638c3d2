"""Which recipe keeps which expert: layer x expert, in four fates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from numpy.typing import NDArray

from analysis.foreign_text import in_html
from analysis.ranking.compare import FATES, Comparison
from app.charts import neurons_kept_by
from app.charts.chart import Drawing, chart, of_both_plans
from app.charts.theme import ink, paper, series_color, themed
from app.charts.traces import (
    STILL_LEGEND,
    Names,
    Place,
    cells_of,
    layer_axis,
    pin,
    rows_height,
    stroke,
)
from pruning.planning.comparing import decision

if TYPE_CHECKING:
    from app.loaded import Loaded

# Colours of both and neither, on the light and the dark page.
NEUTRAL: Final = {False: ("#a3afb7", "#e3e8ec"), True: ("#66747d", "#222d33")}
_STROKES: Final = {"only A": -1, "only B": 1}  # "/" and "\", y pointing down
# With more, cells are a few pixels wide: strokes would blur, and take seconds to draw.
_MOST_STROKED: Final = 6144  # experts
_REACH: Final = 0.3  # of a cell, from its middle
_SIGNS: Final = {"only A": "\u2571", "only B": "\u2572"}


@chart("kept-by", "compare", of_both=True)
def draw(loaded: Loaded) -> Drawing:
    """Which recipe keeps which expert."""
    if loaded.choices.spec.by_neuron:
        return neurons_kept_by.drawing(loaded)
    return _drawing(loaded.comparison, loaded, loaded.names)


def draw_plan_pair(a: Loaded, b: Loaded) -> Drawing:
    """Which of the plans on screen of A and of B keeps which expert."""
    comparison = Comparison(*(decision(side.ranking, side.shown_plan) for side in (a, b)))
    return replace(_drawing(comparison, a, (a.names[0], b.names[0])), name="kept-by")


def _drawing(comparison: Comparison, loaded: Loaded, names: Names) -> Drawing:
    table = comparison.table()
    figure = partial(kept_by_map, table, names, marked=loaded.choices.expert)
    return Drawing(figure, table, describe(table, names), of_both_plans(loaded))


def fate_colors(dark: bool) -> tuple[str, ...]:
    """The colour of each of FATES."""
    both, neither = NEUTRAL[dark]
    return both, series_color(0, dark), series_color(1, dark), neither


def kept_by_map(
    table: pd.DataFrame, names: Names, *, marked: Place | None = None, dark: bool = False
) -> go.Figure:
    """Figure of a table `layer, expert, kept_by, rank_a, rank_b`: a map in four colours."""
    layers = sorted(table["layer"].unique())
    place, shape = cells_of(table, layers)
    width = shape[1]
    codes = np.full(shape, len(FATES), dtype=np.uint8)
    codes[place] = [FATES.index(fate) for fate in table["kept_by"]]
    ranks = np.zeros((*shape, 2), dtype=np.uint16)
    ranks[place] = table[["rank_a", "rank_b"]].to_numpy() + 1
    colors = fate_colors(dark)
    traces = [_cells(codes, ranks, names, (*colors, paper(dark)))]
    has_strokes = len(table) <= _MOST_STROKED
    for fate, slope in _STROKES.items() if has_strokes else ():
        traces.append(_strokes(codes == FATES.index(fate), slope, dark))
    for code, fate in enumerate(FATES):
        edge = {"color": ink(dark), "width": 1}
        mark = {"symbol": "square", "size": 13, "color": colors[code], "line": edge}
        sides = dict(zip(_SIGNS, names, strict=True))
        words = [fate, in_html(sides[fate].partition(",")[0])] if fate in sides else [fate]
        sign = f"  {_SIGNS[fate]}" if has_strokes and fate in sides else ""
        name = f"{', '.join(words)}{sign}: {int((codes == code).sum()):,}"
        traces.append(go.Scatter(x=[None], y=[None], mode="markers", name=name, marker=mark))
    pins = []
    if marked is not None and marked[0] in layers:
        pins = pin(marked[1], layers.index(marked[0]), dark)
    return themed(
        traces,
        dark,
        x={"title": "expert", "range": [-0.5, width - 0.5], "showgrid": False},
        y=layer_axis(layers, title="layer"),
        height=max(420, rows_height(layers, 26, 90)),
        legend=STILL_LEGEND,
        shapes=pins,
    )


def describe(table: pd.DataFrame, names: Names) -> str:
    """One sentence: how many experts both keep, only one, neither."""
    counts = table["kept_by"].value_counts()
    both, only_a, only_b, neither = (int(counts.get(fate, 0)) for fate in FATES)
    return (
        f"Of {len(table)} experts both recipes keep {both} and prune {neither}; "
        f"only A ({names[0]}) keeps {only_a}, only B ({names[1]}) {only_b}."
    )


def _cells(
    codes: NDArray[np.uint8], ranks: NDArray[np.uint16], names: Names, colors: Sequence[str]
) -> go.Heatmap:
    a, b = (in_html(name) for name in names)
    return go.Heatmap(
        z=codes,
        zmin=-0.5,
        zmax=4.5,
        colorscale=[[place / 5, color] for i, color in enumerate(colors) for place in (i, i + 1)],
        showscale=False,
        customdata=ranks,
        hovertemplate="layer %{y}, expert %{x}<br>"
        f"A, {a}: rank %{{customdata[0]}}<br>B, {b}: rank %{{customdata[1]}}<extra></extra>",
    )


def _strokes(where: NDArray[np.bool_], slope: int, dark: bool) -> go.Scatter:
    """One path of strokes with NaN breaks: much faster than a shape for each."""
    rows, experts = np.nonzero(where)
    offsets = np.array([-_REACH, _REACH, np.nan], dtype=np.float32)
    x = (experts[:, None] + offsets).astype(np.float32).ravel()
    y = (rows[:, None] + slope * offsets).astype(np.float32).ravel()
    return stroke(x, y, paper(dark), 1.5).update(line_simplify=False)
