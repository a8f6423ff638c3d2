"""Capability profile: what each candidate keeps of each benchmark, as dots."""

from functools import partial

import pandas as pd
import plotly.graph_objects as go

from analysis.foreign_text import in_html
from app.charts.chart import Drawing
from app.charts.criterion_looks import looks
from app.charts.names import FULL
from app.charts.theme import themed


def capability_drawing(scores: pd.DataFrame, about: str, name: str = "") -> Drawing:
    """The profile of scores 0..1: a row per candidate, best first, and FULL; a column per task."""
    table = scores.rename_axis("candidate").reset_index()
    return Drawing(partial(capability_dots, scores), table, describe(scores), about, name)


def capability_dots(scores: pd.DataFrame, *, dark: bool = False) -> go.Figure:
    """Figure of a table for `drawing`: a line per benchmark; the original model is a bar."""
    benchmarks = [in_html(str(name)) for name in scores.columns]
    dots = []
    for name, look in sorted(looks(scores.index, dark).items(), key=lambda pair: pair[0] == FULL):
        mark: dict[str, object] = {"symbol": look.symbol, "color": look.color}
        mark |= {"size": 18, "line": {"width": 3}} if name == FULL else {"size": 11}
        label = in_html(str(name))
        hover = f"%{{y}}: %{{x:.3f}}<extra>{label}</extra>"
        scatter = go.Scatter(
            x=scores.loc[name], y=benchmarks, name=label, mode="markers", cliponaxis=False
        )
        dots.append(scatter.update(marker=mark, hovertemplate=hover))
    return themed(
        dots,
        dark,
        x={"title": "score", "rangemode": "tozero", "tickformat": ".1f"},
        # A mark at 0 covers no letter of them.
        y={"type": "category", "autorange": "reversed", "ticklabelstandoff": 9},
        # On a phone the legend has a line for each candidate.
        height=110 + 32 * len(benchmarks) + 24 * max(0, len(dots) - 3),
        legend={"maxheight": 0.7},
    )


def describe(scores: pd.DataFrame) -> str:
    """One sentence: which candidate keeps most and least of the original, on average."""
    means = scores.drop(index=FULL, errors="ignore").mean(axis=1, skipna=False).dropna()
    if means.empty:
        return "No candidate has a score on every benchmark."
    best, worst = str(means.idxmax()), str(means.idxmin())
    count, kept = (
        scores.shape[1],
        f"most {best} {means[best]:.3f}, least {worst} {means[worst]:.3f}",
    )
    if len(means) == 1:
        kept = f"{best} {means[best]:.3f}"
    original = f"; {FULL} {scores.loc[FULL].mean():.3f}" if FULL in scores.index else ""
    return f"Mean of {count} benchmark{'s' * (count != 1)}: {kept}{original}."
