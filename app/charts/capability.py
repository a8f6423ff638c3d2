"""Capability profile: what each candidate keeps of each benchmark, as dots or as a radar."""

from functools import partial
from typing import Final

import pandas as pd
import plotly.graph_objects as go

from analysis.foreign_text import in_html
from app.charts.chart import Drawing
from app.charts.criterion_looks import looks
from app.charts.names import FULL
from app.charts.theme import CLEAR, apply_theme, ink, themed

_RADAR_GRID: Final = "rgba(128, 140, 150, 0.4)"
_BETWEEN_SPOKES: Final = 78  # degrees, so that axis numbers hide no name
_RADAR_LINES: Final = 4  # more lines hide each other; the legend shows the others


def drawing(scores: pd.DataFrame, about: str, *, radar: bool, name: str = "") -> Drawing:
    """The profile of scores 0..1: a row per candidate, best first, and FULL; a column per task."""
    figure = partial(capability_radar if radar else capability_dots, scores)
    table = scores.rename_axis("candidate").reset_index()
    return Drawing(figure, table, describe(scores), about, name)


def capability_dots(scores: pd.DataFrame, *, dark: bool = False) -> go.Figure:
    """Figure of a table for `drawing`: a line per benchmark; the original model is a bar."""
    benchmarks = [in_html(str(name)) for name in scores.columns]
    dots, drawn = [], looks(scores.index, dark)
    for name in sorted(scores.index, key=lambda each: each == FULL):
        mark: dict[str, object] = {"symbol": drawn[name].symbol, "color": drawn[name].color}
        mark |= {"size": 18, "line": {"width": 3}} if name == FULL else {"size": 11}
        label = in_html(str(name))
        hover = f"%{{y}}: %{{x:.3f}}<extra>{label}</extra>"
        scatter = go.Scatter(x=scores.loc[name], y=benchmarks, name=label, mode="markers")
        dots.append(scatter.update(marker=mark, hovertemplate=hover))
    return themed(
        dots,
        dark,
        x={"title": "score", "rangemode": "tozero", "tickformat": ".1f"},
        y={"type": "category", "autorange": "reversed"},
        height=110 + 30 * len(benchmarks),
    )


def capability_radar(scores: pd.DataFrame, *, dark: bool = False) -> go.Figure:
    """The same as a radar (arXiv:2603.18492, Figure 3), with axes in the order of the columns.

    Its area depends on that order: compare shapes. The legend shows candidates beyond the first.
    """
    spokes = [in_html(str(name)) for name in scores.columns]
    fig = go.Figure()
    # The original model comes first and does not count as a line.
    rows, drawn = sorted(scores.index, key=lambda each: each != FULL), looks(scores.index, dark)
    for index, name in enumerate(rows, -1 if FULL in rows else 0):
        values, label = [float(value) for value in scores.loc[name]], in_html(str(name))
        fig.add_scatterpolar(
            r=[*values, values[0]],
            theta=[*spokes, spokes[0]],
            name=label,
            mode="lines",
            line={"color": drawn[name].color, "dash": drawn[name].dash, "width": 2},
            hovertemplate=f"%{{theta}}: %{{r:.3f}}<extra>{label}</extra>",
            visible=True if index < _RADAR_LINES else "legendonly",
        )
    axis = {"gridcolor": _RADAR_GRID, "linecolor": _RADAR_GRID, "tickfont": {"color": ink(dark)}}
    radial = {"rangemode": "tozero", "tickformat": ".1f", "nticks": 6, "angle": _BETWEEN_SPOKES}
    return apply_theme(
        fig,
        dark,
        height=580,
        margin={"t": 30, "l": 110, "r": 110, "b": 40},
        legend={"yref": "paper", "y": 1.0},
        polar={
            "domain": {"y": [0, 0.82]},
            "bgcolor": CLEAR,
            "radialaxis": axis | radial,
            "angularaxis": axis | {"direction": "clockwise", "rotation": 90},
        },
    )


def describe(scores: pd.DataFrame) -> str:
    """One sentence: which candidate keeps most and least of the original, on average."""
    means = scores.drop(index=FULL, errors="ignore").mean(axis=1, skipna=False).dropna()
    if means.empty:
        return "No candidate has a score on every benchmark."
    best, worst = str(means.idxmax()), str(means.idxmin())
    whole = f"; {FULL} {scores.loc[FULL].mean():.3f}" if FULL in scores.index else ""
    return (
        f"Mean of {scores.shape[1]} benchmarks: most {best} {means[best]:.3f}, least {worst} "
        f"{means[worst]:.3f}{whole}."
    )
