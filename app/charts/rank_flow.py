"""Rank flow of a layer between two recipes: a line an expert, those that cross the cut coloured."""

from typing import Final

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from analysis.ranking.compare import Comparison
from app.charts.chart import Chart, Drawing
from app.charts.comparing import names_of
from app.charts.context import Context
from app.charts.theme import apply_theme, ink, muted, paper, plain, primary, series_color

# Series colour and dash; A's own lines fall, B's own rise.
_ALONE: Final = {"only A": (1, "solid"), "only B": (3, "dash")}
_QUIET: Final = ("both", "neither")
_PIXELS_A_RANK: Final = 12


def most_moved(comparison: Comparison) -> int:
    """The layer whose experts the recipes agree on least; of equals, the first."""
    by_layer = comparison.by_layer
    return int(by_layer["layer"].to_numpy()[by_layer["agreement"].to_numpy().argmin()])


def _draw(context: Context) -> Drawing:
    comparison, names, place = context.comparison, names_of(context), context.expert
    layer = context.layer
    if layer is None:
        layer = place[0] if place else most_moved(comparison)
    marked = place[1] if place and place[0] == layer else None
    table = comparison.table()
    rows = table[table["layer"] == layer].reset_index(drop=True)
    return Drawing(
        "rank-flow",
        lambda dark: bump(rows, names, marked=marked, dark=dark),
        rows,
        describe(rows),
        context.about_both(),
    )


RANK_FLOW = Chart("rank-flow", "compare", "Who crosses the cut in one layer", _draw)


def bump(
    table: pd.DataFrame,
    names: tuple[str, str] = ("A", "B"),
    *,
    marked: int | None = None,
    dark: bool = False,
) -> go.Figure:
    """Figure of the rows of one layer of a table `expert, kept_by, rank_a, rank_b`.

    Rank 0, the first to keep, is on top and shown as 1. `marked` is an expert to point out.
    """
    fig = go.Figure()
    for fate in _QUIET:
        fig.add_trace(_quiet(fate, table[table["kept_by"] == fate], dark))
    for fate in _ALONE:
        fig.add_trace(_alone(fate, table[table["kept_by"] == fate], dark))
    if marked is not None and (table["expert"] == marked).any():
        fig.add_trace(_marked(table[table["expert"] == marked].iloc[0], dark))
    cuts = [_kept(table, side) + 0.5 for side in "AB"]
    for color, width in ((paper(dark), 5), (ink(dark), 2)):
        fig.add_trace(_cut(cuts, color, width))
    apply_theme(fig, dark)
    return _lay_out(fig, table, names)


def describe(table: pd.DataFrame) -> str:
    """One sentence: how many experts of the layer cross the cut, and which moves furthest."""
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


def _kept(table: pd.DataFrame, side: str) -> int:
    return int(table["kept_by"].isin(("both", f"only {side}")).sum())


def _paths(rows: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """One path of lines, a break (NaN) after each."""
    ranks = rows[["rank_a", "rank_b"]].to_numpy(np.float32) + 1
    breaks = np.full((len(rows), 1), np.nan, dtype=np.float32)
    x = np.tile(np.array([0, 1, np.nan], dtype=np.float32), len(rows))
    return x, np.hstack([ranks, breaks]).ravel()


def _quiet(fate: str, rows: pd.DataFrame, dark: bool) -> go.Scatter:
    x, y = _paths(rows)
    return go.Scatter(
        x=x,
        y=y,
        name=f"{fate}: {len(rows)}",
        mode="lines",
        line={"color": muted(dark), "width": 1, "dash": "dot" if fate == "neither" else "solid"},
        opacity=0.45,
        hoverinfo="skip",
    )


def _alone(fate: str, rows: pd.DataFrame, dark: bool) -> go.Scatter:
    x, y = _paths(rows)
    series, dash = _ALONE[fate]
    experts = np.repeat(rows["expert"].to_numpy(), 3)
    return go.Scatter(
        x=x,
        y=y,
        text=[str(expert) for expert in experts],
        customdata=experts,
        name=f"{fate}: {len(rows)}",
        mode="lines+markers+text",
        textposition=["middle left", "middle right", "middle right"] * len(rows),
        textfont={"color": ink(dark), "size": 11},
        cliponaxis=False,
        line={"color": series_color(series, dark), "width": 2, "dash": dash},
        marker={"size": 6, "color": series_color(series, dark)},
        hovertemplate="expert %{customdata}: rank %{y}<extra></extra>",
    )


def _marked(row: "pd.Series[int]", dark: bool) -> go.Scatter:
    return go.Scatter(
        x=[0, 1],
        y=[row["rank_a"] + 1, row["rank_b"] + 1],
        name=f"expert {row['expert']}",
        mode="lines+markers",
        line={"color": primary(dark), "width": 4},
        marker={"size": 11, "symbol": "diamond", "color": primary(dark)},
        hovertemplate=f"expert {row['expert']}: rank %{{y}}<extra></extra>",
    )


def _cut(cuts: list[float], color: str, width: int) -> go.Scatter:
    return go.Scatter(
        x=[-0.08, 0, 1, 1.08],
        y=[cuts[0], cuts[0], cuts[1], cuts[1]],
        mode="lines",
        line={"color": color, "width": width},
        hoverinfo="skip",
        showlegend=False,
        cliponaxis=False,
    )


def _lay_out(fig: go.Figure, table: pd.DataFrame, names: tuple[str, str]) -> go.Figure:
    height = int(np.clip(len(table) * _PIXELS_A_RANK, 240, 900))
    fig.update_layout(
        height=height + 110,
        margin={"t": 60, "l": 40, "r": 40},
        legend={"itemclick": False, "itemdoubleclick": False, "traceorder": "normal"},
    )
    heads = [f"{side}: {plain(name)}" for side, name in zip("AB", names, strict=True)]
    fig.update_xaxes(tickvals=[0, 1], ticktext=heads, range=[-0.12, 1.12], showgrid=False)
    fig.update_yaxes(
        title_text="rank (1 = first to keep)", range=[len(table) + 0.7, 0.3], showgrid=False
    )
    return fig
