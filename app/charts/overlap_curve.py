"""Overlap of the pruned sets between corpora, against sparsity."""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import partial
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from analysis.criteria import Criterion, get_criterion
from analysis.foreign_text import in_html
from analysis.ranking.overlap import chance_overlap, corpora_overlap, criterion_overlap
from analysis.stats.tables import ExpertStats, Gate
from app.charts.chart import Drawing, chart
from app.charts.context import CURVE_BESIDE, Context
from app.charts.criterion_looks import looks
from app.charts.theme import ink, paper, themed
from app.charts.traces import OVERLAP_AXIS, annotation, chance, series

CURVE_PERCENTS = tuple(range(5, 100, 5))


def curve_table(
    criteria: Sequence[Criterion], stats: Mapping[str, ExpertStats], gate: Gate
) -> pd.DataFrame:
    """Table `sparsity, overlap, chance, series, kind`: means over pairs of corpora.

    Of three or more corpora also the share that all prune ("all corpora"), by the first criterion.
    """
    grid, count = next(iter(stats.values())).grid, len(stats)
    rows: list[tuple[float, float, float, str, str]] = []
    for percent in CURVE_PERCENTS:
        sparsity = Fraction(percent, 100)
        by_chance = chance_overlap(grid, sparsity)
        for criterion in criteria:
            table = criterion_overlap(criterion, stats, gate, sparsity)
            overlap = float(table["overlap"].mean())
            rows.append((percent / 100, overlap, by_chance, criterion.label, "pairs"))
        if count > 2:
            overlap = corpora_overlap(criteria[0], stats, gate, sparsity)
            by_chance = chance_overlap(grid, sparsity, count)
            name = f"{criteria[0].label}, all corpora"
            rows.append((percent / 100, overlap, by_chance, name, "all corpora"))
    return pd.DataFrame(rows, columns=["sparsity", "overlap", "chance", "series", "kind"])


@chart("overlap-by-sparsity", "explore")
def draw(context: Context) -> Drawing:
    """How the agreement of corpora changes with sparsity."""
    names = dict.fromkeys((context.routed_criterion().name, *CURVE_BESIDE))
    criteria, share = [get_criterion(name) for name in names], float(context.fraction)
    table = context.keep(curve_table, criteria, context.corpora_stats, context.gate)
    figure, about = partial(overlap_curve, table, sparsity=share), f"gate {context.gate}"
    return Drawing(figure, table, describe(table, sparsity=share), context.about(about))


def overlap_curve(table: pd.DataFrame, *, sparsity: float, dark: bool = False) -> go.Figure:
    """Figure of a table `sparsity, overlap, chance, series, kind`: one line per series.

    All numbers are shares, 0..1. `chance` is the overlap of random sets, with a line per `kind`
    (pairs, or all corpora). The current `sparsity` is marked.
    """
    lines = []
    for place, (kind, rows) in enumerate(table.groupby("kind", sort=False)):
        line = rows.drop_duplicates("sparsity").sort_values("sparsity")
        label, width = ("chance", 2) if place == 0 else (f"chance, {kind}", 1)
        hover = f"{label} %{{y:.3f}}"
        lines.append(chance(line["sparsity"], line["chance"], dark, hover, name=label, width=width))
    look_by_name = looks(table["series"].unique(), dark)
    for name, rows in table.groupby("series", sort=False):
        rows = rows.sort_values("sparsity")
        is_now = [abs(at - sparsity) < 1e-9 for at in rows["sparsity"]]
        mark = {
            # Plotly makes markers of several sizes translucent by default.
            "opacity": 1,
            "size": [13 if now else 7 for now in is_now],
            "line": {"color": ink(dark), "width": [2 if now else 0 for now in is_now]},
        }
        hover = f"{in_html(str(name))} %{{y:.3f}}"
        points = rows["sparsity"], rows["overlap"]
        lines.append(series(look_by_name[str(name)], str(name), points, hover, marker=mark))
    fig = themed(
        lines,
        dark,
        x={"title": "sparsity", "tickformat": ".0%", "hoverformat": ".0%", "showgrid": False},
        y=OVERLAP_AXIS | {"title": "overlap of pruned sets"},
        # In a narrow column each legend entry takes a line.
        height=300 + 18 * max(0, len(lines) - 3),
        hovermode="x unified",
    )
    side: dict[str, Any] = {"xanchor": "left", "xshift": 4}
    if sparsity >= 0.5:
        side = {"xanchor": "right", "xshift": -4}
    ground = {"yref": "paper", "yanchor": "bottom", "bgcolor": paper(dark)}
    fig.add_vline(x=sparsity, line={"color": ink(dark), "width": 1}, opacity=0.6)
    return fig.add_annotation(annotation(sparsity, 0, f"now {sparsity:.0%}", **side, **ground))


def describe(table: pd.DataFrame, *, sparsity: float) -> str:
    """One sentence: overlap and chance at the sparsity nearest to the current one."""
    rows = table.dropna(subset=["overlap"])
    if rows.empty:
        return "No overlap is known at any sparsity."
    nearest = min(rows["sparsity"].tolist(), key=lambda value: abs(value - sparsity))
    nearest_rows = rows[rows["sparsity"] == nearest].sort_values("overlap", ascending=False)
    by_chance = nearest_rows["chance"].max()  # of pairs, if there are several kinds
    shares = ", ".join(
        f"{name} {overlap:.0%}"
        for name, overlap in zip(nearest_rows["series"], nearest_rows["overlap"], strict=True)
    )
    return f"At {nearest:.0%} sparsity the pruned sets share: {shares}; chance {by_chance:.0%}."
