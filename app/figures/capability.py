"""Capability profile: what each candidate keeps of each benchmark, as dots or as a radar."""

from collections.abc import Mapping
from typing import Final

import pandas as pd
import plotly.graph_objects as go

from app.figures.theme import DASHES, SYMBOLS, apply_theme, ink, plain, series_color

_DOT_ROW: Final = 30
_RADAR_GRID: Final = "rgba(128, 140, 150, 0.4)"
_BETWEEN_SPOKES: Final = 78  # degrees, where the numbers of the axis hide no name
_RADAR_LINES: Final = 4  # more lines than that hide each other; the legend brings the others back


def capability_dots(scores: pd.DataFrame, reference: str, *, dark: bool = False) -> go.Figure:
    """Figure of a table with a row per candidate and a column per benchmark, scores 0..1.

    The row ``reference`` is the model as it was: an upright bar in each line.
    """
    benchmarks = [plain(str(name)) for name in scores.columns]
    rows = {str(name): row for name, row in scores.iterrows()}
    whole = rows.pop(reference, None)
    fig = go.Figure()
    for index, (name, row) in enumerate(rows.items()):
        mark = {
            "symbol": SYMBOLS[index % len(SYMBOLS)],
            "size": 11,
            "color": series_color(index, dark),
            "line": {"color": ink(dark), "width": 1 if index >= len(SYMBOLS) else 0},
        }
        fig.add_trace(_marks(row, benchmarks, name, mark))
    if whole is not None:
        bar = {"symbol": "line-ns-open", "size": 18, "color": ink(dark)}
        bar |= {"line": {"width": 3, "color": ink(dark)}}
        fig.add_trace(_marks(whole, benchmarks, reference, bar))
    apply_theme(fig, dark)
    fig.update_layout(height=110 + _DOT_ROW * len(benchmarks), margin={"t": 70})
    fig.update_xaxes(title_text="score", rangemode="tozero", tickformat=".1f")
    fig.update_yaxes(type="category", autorange="reversed")
    return fig


def capability_radar(scores: pd.DataFrame, reference: str, *, dark: bool = False) -> go.Figure:
    """The same table as a radar (arXiv:2603.18492, Figure 3), axes in the order of the table.

    Its area depends on that order, so it shows shape, not worth. The reference is dotted; all but
    the first candidates start hidden, and the legend brings them back.
    """
    spokes = [plain(str(name)) for name in scores.columns]
    fig = go.Figure()
    rows = {str(name): row for name, row in scores.iterrows()}
    if reference in rows:
        fig.add_trace(_loop(rows.pop(reference), spokes, reference, ink(dark), "dot"))
    for index, (name, row) in enumerate(rows.items()):
        dash = DASHES[index % len(DASHES)]
        loop = _loop(row, spokes, name, series_color(index, dark), dash)
        loop.visible = True if index < _RADAR_LINES else "legendonly"
        fig.add_trace(loop)
    apply_theme(fig, dark)
    axis = {"gridcolor": _RADAR_GRID, "linecolor": _RADAR_GRID, "tickfont": {"color": ink(dark)}}
    fig.update_layout(
        height=580,
        margin={"t": 30, "l": 110, "r": 110, "b": 40},
        legend={"y": 1.0, "yanchor": "top"},
        polar={
            "domain": {"y": [0, 0.82]},
            "bgcolor": "rgba(0,0,0,0)",
            "radialaxis": axis
            | {"rangemode": "tozero", "tickformat": ".1f", "nticks": 6, "angle": _BETWEEN_SPOKES},
            "angularaxis": axis | {"direction": "clockwise", "rotation": 90},
        },
    )
    return fig


def describe(scores: pd.DataFrame, reference: str) -> str:
    """One sentence: who keeps most and least of the reference, on the mean of the benchmarks."""
    means = scores.drop(index=reference, errors="ignore").mean(axis=1, skipna=False).dropna()
    if means.empty:
        return "No candidate has a score on every benchmark."
    best, worst = str(means.idxmax()), str(means.idxmin())
    whole = f"; {reference} {scores.loc[reference].mean():.3f}" if reference in scores.index else ""
    return (
        f"Mean of {scores.shape[1]} benchmarks: most {best} {means[best]:.3f}, least {worst} "
        f"{means[worst]:.3f}{whole}."
    )


def _marks(
    row: pd.Series, benchmarks: list[str], name: str, marker: Mapping[str, object]
) -> go.Scatter:
    return go.Scatter(
        x=row,
        y=benchmarks,
        name=plain(name),
        mode="markers",
        marker=dict(marker),
        hovertemplate="%{y}: %{x:.3f}<extra>" + plain(name) + "</extra>",
    )


def _loop(row: pd.Series, spokes: list[str], name: str, color: str, dash: str) -> go.Scatterpolar:
    values = [float(value) for value in row]
    return go.Scatterpolar(
        r=[*values, values[0]],
        theta=[*spokes, spokes[0]],
        name=plain(name),
        mode="lines",
        line={"color": color, "dash": dash, "width": 2},
        hovertemplate="%{theta}: %{r:.3f}<extra>" + plain(name) + "</extra>",
    )
