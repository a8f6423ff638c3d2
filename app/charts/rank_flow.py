"""Rank flow of one layer: a line per expert from its rank in A to that in B."""

from functools import partial
from textwrap import wrap
from typing import Final

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from analysis.foreign_text import in_html
from analysis.ranking.compare import Comparison
from app.charts.chart import Drawing, chart
from app.charts.context import Context
from app.charts.criterion_looks import side_colors
from app.charts.theme import ink, muted, pinned, themed
from app.charts.traces import STILL_LEGEND, Names, halo, stroke

_LETTERS: Final = 16
_ALONE: Final = {"only A": "solid", "only B": "dash"}  # A's own lines fall, B's own rise


def most_moved(comparison: Comparison) -> int:
    """The first layer with the least agreement."""
    by_layer = comparison.by_layer
    return int(by_layer["layer"].to_numpy()[by_layer["agreement"].to_numpy().argmin()])


@chart("rank-flow", "compare")
def draw(context: Context) -> Drawing:
    """Who crosses the cut in one layer."""
    comparison, names, place = context.comparison, context.names, context.expert
    layer = context.layer
    if layer is None:
        layer = place[0] if place else most_moved(comparison)
    marked = place[1] if place and place[0] == layer else None
    table = comparison.table()
    rows = table[table["layer"] == layer].reset_index(drop=True)
    figure = partial(bump, rows, names, marked=marked)
    return Drawing(figure, rows, describe(rows), context.about_both())


def bump(
    table: pd.DataFrame, names: Names, *, marked: int | None = None, dark: bool = False
) -> go.Figure:
    """Figure of one layer of a table `expert, kept_by, rank_a, rank_b`: a line per expert.

    Rank 0, the first to keep, is on top and shown as 1. `marked` is an expert to highlight.
    """
    lines = []
    for fate in ("both", "neither"):
        rows = table[table["kept_by"] == fate]
        name = f"{fate}: {len(rows)}"
        line = stroke(*_paths(rows), muted(dark), 1, name=name, opacity=0.45, showlegend=None)
        lines.append(line.update(line_dash="dot" if fate == "neither" else "solid"))
    for (fate, dash), color in zip(_ALONE.items(), side_colors(names, dark), strict=True):
        rows = table[table["kept_by"] == fate]
        x, y = _paths(rows)
        experts = np.repeat(rows["expert"].to_numpy(), 3)
        line = go.Scatter(x=x, y=y, name=f"{fate}: {len(rows)}", mode="lines+markers+text")
        line.update(
            text=[str(expert) for expert in experts],
            customdata=experts,
            textposition=["middle left", "middle right", "middle right"] * len(rows),
            textfont={"color": ink(dark), "size": 11},
            cliponaxis=False,
            line={"color": color, "width": 2, "dash": dash},
            marker={"size": 6, "color": color},
            hovertemplate="expert %{customdata}: rank %{y}<extra></extra>",
        )
        lines.append(line)
    if marked is not None and (table["expert"] == marked).any():
        ranks = table.loc[table["expert"] == marked, ["rank_a", "rank_b"]].to_numpy()[0] + 1
        lines.append(
            go.Scatter(
                x=[0, 1],
                y=ranks.tolist(),
                name=f"expert {marked}",
                mode="lines+markers",
                line={"color": pinned(dark), "width": 4},
                marker={"size": 11, "symbol": "diamond", "color": pinned(dark)},
                hovertemplate=f"expert {marked}: rank %{{y}}<extra></extra>",
            )
        )
    a, b = (int(table["kept_by"].isin(("both", f"only {side}")).sum()) + 0.5 for side in "AB")
    cut = ([-0.08, 0, 1, 1.08], [a, a, b, b])
    lines += [stroke(*cut, *look, cliponaxis=False) for look in halo(dark)]
    # On lines of their own, else a phone has room for one of the two.
    heads = [
        "<br>".join(in_html(part) for part in wrap(f"{side}: {name}", _LETTERS))
        for side, name in zip("AB", names, strict=True)
    ]
    ranks_title = "rank (1 = first to keep)"
    return themed(
        lines,
        dark,
        x={"tickvals": [0, 1], "ticktext": heads, "range": [-0.12, 1.12], "showgrid": False},
        y={"title": ranks_title, "range": [len(table) + 0.7, 0.3], "showgrid": False},
        height=int(np.clip(len(table) * 12, 240, 900)) + 110,
        margin={"l": 40, "r": 40},
        legend=STILL_LEGEND,
    )


def describe(table: pd.DataFrame) -> str:
    """One sentence: how many experts of the layer cross the cut, and which moves most."""
    layer = int(table["layer"].iloc[0])
    crossing = table[table["kept_by"].isin(tuple(_ALONE))]
    if crossing.empty:
        return f"In layer {layer} both recipes keep the same experts."
    distance = (crossing["rank_a"] - crossing["rank_b"]).abs().to_numpy()
    far = crossing.iloc[int(distance.argmax())]
    return (
        f"In layer {layer}, {len(crossing)} of {len(table)} experts cross the cut; expert "
        f"{far['expert']} moves furthest, from rank {far['rank_a'] + 1} in A to "
        f"{far['rank_b'] + 1} in B."
    )


def _paths(rows: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """One path of lines with NaN breaks: x and y."""
    ranks = rows[["rank_a", "rank_b"]].to_numpy(np.float32) + 1
    x = np.tile(np.array([0, 1, np.nan], dtype=np.float32), len(rows))
    return x, np.pad(ranks, ((0, 0), (0, 1)), constant_values=np.nan).ravel()
