"""Capability profile: what each candidate keeps of each benchmark, as dots or as a radar."""

from typing import Final

import pandas as pd
import plotly.graph_objects as go

from app.charts.chart import Drawing
from app.charts.names import FULL
from app.charts.theme import DASHES, SYMBOLS, apply_theme, ink, plain, series_color

_DOT_ROW: Final = 30
_RADAR_GRID: Final = "rgba(128, 140, 150, 0.4)"
_BETWEEN_SPOKES: Final = 78  # degrees, where the numbers of the axis hide no name
_RADAR_LINES: Final = 4  # more lines than that hide each other; the legend brings the others back


def drawing(name: str, scores: pd.DataFrame, about: str, *, radar: bool) -> Drawing:
    """The profile of a table with a row per candidate and a column per benchmark, scores 0..1.

    Args:
        name: of the chart.
        scores: best candidate first; the row FULL is the model as it was.
        about: what made it.
        radar: draw a radar.
    """
    draw = capability_radar if radar else capability_dots
    return Drawing(
        name,
        lambda dark: draw(scores, dark=dark),
        scores.rename_axis("candidate").reset_index(),
        describe(scores),
        about,
    )


def capability_dots(scores: pd.DataFrame, *, dark: bool = False) -> go.Figure:
    """Figure of a table with a row per candidate and a column per benchmark, scores 0..1.

    The row FULL is the model as it was: an upright bar in each line.
    """
    benchmarks = [plain(str(name)) for name in scores.columns]
    candidates = [name for name in scores.index if name != FULL]
    fig = go.Figure()
    for index, name in enumerate([*candidates, *(each for each in scores.index if each == FULL)]):
        mark: dict[str, object] = {
            "symbol": SYMBOLS[index % len(SYMBOLS)],
            "size": 11,
            "color": series_color(index, dark),
            "line": {"color": ink(dark), "width": 1 if index >= len(SYMBOLS) else 0},
        }
        if name == FULL:
            line = {"width": 3, "color": ink(dark)}
            mark = {"symbol": "line-ns-open", "size": 18, "color": ink(dark), "line": line}
        fig.add_scatter(
            x=scores.loc[name],
            y=benchmarks,
            name=plain(str(name)),
            mode="markers",
            marker=mark,
            hovertemplate=f"%{{y}}: %{{x:.3f}}<extra>{plain(str(name))}</extra>",
        )
    apply_theme(fig, dark)
    fig.update_layout(height=110 + _DOT_ROW * len(benchmarks), margin={"t": 70})
    fig.update_xaxes(title_text="score", rangemode="tozero", tickformat=".1f")
    fig.update_yaxes(type="category", autorange="reversed")
    return fig


def capability_radar(scores: pd.DataFrame, *, dark: bool = False) -> go.Figure:
    """The same table as a radar (arXiv:2603.18492, Figure 3), axes in the order of the table.

    Its area depends on that order, so it shows shape, not worth. The full model is dotted; all but
    the first candidates start hidden, and the legend brings them back.
    """
    spokes = [plain(str(name)) for name in scores.columns]
    fig = go.Figure()
    candidates = [name for name in scores.index if name != FULL]
    for name in sorted(scores.index, key=lambda each: each != FULL):
        color, dash, is_visible = ink(dark), "dot", True
        if name != FULL:
            index = candidates.index(name)
            color, dash = series_color(index, dark), DASHES[index % len(DASHES)]
            is_visible = index < _RADAR_LINES
        values = [float(value) for value in scores.loc[name]]
        fig.add_scatterpolar(
            r=[*values, values[0]],
            theta=[*spokes, spokes[0]],
            name=plain(str(name)),
            mode="lines",
            line={"color": color, "dash": dash, "width": 2},
            hovertemplate=f"%{{theta}}: %{{r:.3f}}<extra>{plain(str(name))}</extra>",
            visible=True if is_visible else "legendonly",
        )
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


def describe(scores: pd.DataFrame) -> str:
    """One sentence: who keeps most and least of the full model, on the mean of the benchmarks."""
    means = scores.drop(index=FULL, errors="ignore").mean(axis=1, skipna=False).dropna()
    if means.empty:
        return "No candidate has a score on every benchmark."
    best, worst = str(means.idxmax()), str(means.idxmin())
    whole = f"; {FULL} {scores.loc[FULL].mean():.3f}" if FULL in scores.index else ""
    return (
        f"Mean of {scores.shape[1]} benchmarks: most {best} {means[best]:.3f}, least {worst} "
        f"{means[worst]:.3f}{whole}."
    )
