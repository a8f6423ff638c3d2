"""Overlap of the pruned sets between texts, against sparsity."""

from collections.abc import Mapping, Sequence
from fractions import Fraction

import pandas as pd
import plotly.graph_objects as go

from analysis.criteria import Criterion, get_criterion
from analysis.ranking.overlap import chance_overlap, corpora_overlap, criterion_overlap
from analysis.stats.tables import ExpertStats, Gate
from app.charts.chart import Chart, Drawing
from app.charts.context import CURVE_BESIDE, Context
from app.charts.theme import (
    DASHES,
    SYMBOLS,
    apply_theme,
    ink,
    muted,
    paper,
    plain,
    series_color,
)

CURVE_PERCENTS = tuple(range(5, 100, 5))


def curve_table(
    criteria: Sequence[Criterion], stats: Mapping[str, ExpertStats], gate: Gate
) -> pd.DataFrame:
    """Table `sparsity, overlap, chance, series, kind`, at each sparsity.

    Mean over pairs of corpora for every criterion; of three corpora and more also the share that
    all prune ("all texts"), for the first.
    """
    grid, count = next(iter(stats.values())).grid, len(stats)
    rows: list[tuple[float, float, float, str, str]] = []
    for percent in CURVE_PERCENTS:
        sparsity = Fraction(percent, 100)
        chance = chance_overlap(grid, sparsity)
        for criterion in criteria:
            table = criterion_overlap(criterion, stats, gate, sparsity)
            overlap = float(table["overlap"].mean())
            rows.append((percent / 100, overlap, chance, criterion.label, "pairs"))
        if count > 2:
            overlap = corpora_overlap(criteria[0], stats, gate, sparsity)
            chance = chance_overlap(grid, sparsity, count)
            name = f"{criteria[0].label}, all texts"
            rows.append((percent / 100, overlap, chance, name, "all texts"))
    return pd.DataFrame(rows, columns=["sparsity", "overlap", "chance", "series", "kind"])


def _draw(context: Context) -> Drawing:
    names = dict.fromkeys((context.routed_criterion().name, *CURVE_BESIDE))
    criteria, share = [get_criterion(name) for name in names], float(context.fraction)
    table = context.keep(curve_table, criteria, context.corpora_stats, context.gate)
    return Drawing(
        "overlap-by-sparsity",
        lambda dark: overlap_curve(table, sparsity=share, dark=dark),
        table,
        describe(table, sparsity=share),
        context.about(f"gate {context.gate}"),
    )


OVERLAP_CURVE = Chart(
    "overlap-by-sparsity",
    "explore",
    "How the agreement of texts changes with sparsity",
    _draw,
)


def overlap_curve(
    table: pd.DataFrame, *, sparsity: float | None = None, dark: bool = False
) -> go.Figure:
    """Figure of a table `sparsity, overlap, chance, series, kind`: one line a series.

    All three numbers are shares, 0..1. `chance` is the overlap of random sets of that size, one
    line for each `kind` (pairs, or all texts at once); a table without kinds has one.
    `sparsity` is the current one: it is marked, with the overlap of each series there.
    """
    fig = go.Figure()
    kinds = table.get("kind", pd.Series("pairs", index=table.index))
    for place, (kind, rows) in enumerate(table.groupby(kinds, sort=False)):
        fig.add_trace(_chance(place, str(kind), rows, dark))
    for index, (name, rows) in enumerate(table.groupby("series", sort=False)):
        fig.add_trace(_line(index, str(name), rows.sort_values("sparsity"), sparsity, dark))
    if sparsity is not None:
        _mark(fig, sparsity, dark)
    apply_theme(fig, dark)
    # In a narrow column each name of the legend takes a line.
    height = 300 + 18 * max(0, len(fig.data) - 3)
    fig.update_layout(height=height, hovermode="x unified", margin={"t": 30})
    fig.update_xaxes(title_text="sparsity", tickformat=".0%", hoverformat=".0%", showgrid=False)
    fig.update_yaxes(title_text="overlap of pruned sets", range=[-0.03, 1.06], tickformat=".1f")
    return fig


def describe(table: pd.DataFrame, *, sparsity: float | None = None) -> str:
    """One sentence: overlap against chance at the sparsity nearest to the current one."""
    known = table.dropna(subset=["overlap"])
    if known.empty:
        return "No overlap is known at any sparsity."
    wanted = float(known["sparsity"].median()) if sparsity is None else sparsity
    nearest = min(known["sparsity"].tolist(), key=lambda value: abs(value - wanted))
    here = known[known["sparsity"] == nearest].sort_values("overlap", ascending=False)
    chance = here["chance"].max()  # of pairs, where there is more than one kind
    shares = ", ".join(
        f"{name} {overlap:.0%}"
        for name, overlap in zip(here["series"], here["overlap"], strict=True)
    )
    return f"At {nearest:.0%} sparsity the pruned sets share: {shares}; chance {chance:.0%}."


def _chance(place: int, kind: str, rows: pd.DataFrame, dark: bool) -> go.Scatter:
    line = rows.drop_duplicates("sparsity").sort_values("sparsity")
    name = "chance" if place == 0 else f"chance, {kind}"
    return go.Scatter(
        x=line["sparsity"],
        y=line["chance"],
        name=name,
        mode="lines",
        line={"color": muted(dark), "dash": "dot", "width": 2 if place == 0 else 1},
        hovertemplate=f"{name} %{{y:.3f}}<extra></extra>",
    )


def _line(
    index: int, name: str, rows: pd.DataFrame, sparsity: float | None, dark: bool
) -> go.Scatter:
    color = series_color(index, dark)
    is_current = [
        sparsity is not None and abs(value - sparsity) < 1e-9 for value in rows["sparsity"]
    ]
    return go.Scatter(
        x=rows["sparsity"],
        y=rows["overlap"],
        name=plain(name),
        mode="lines+markers",
        line={"color": color, "dash": DASHES[index % len(DASHES)], "width": 2},
        marker={
            "symbol": SYMBOLS[index % len(SYMBOLS)],
            "color": color,
            # Plotly makes markers of several sizes translucent unless told otherwise.
            "opacity": 1,
            "size": [13 if current else 7 for current in is_current],
            "line": {
                "color": ink(dark),
                "width": [2 if current else 0 for current in is_current],
            },
        },
        hovertemplate=f"{plain(name)} %{{y:.3f}}<extra></extra>",
    )


def _mark(fig: go.Figure, sparsity: float, dark: bool) -> None:
    fig.add_vline(x=sparsity, line={"color": ink(dark), "width": 1}, opacity=0.6)
    fig.add_annotation(
        x=sparsity,
        y=0,
        yref="paper",
        yanchor="bottom",
        xanchor="left" if sparsity < 0.5 else "right",
        xshift=4 if sparsity < 0.5 else -4,
        text=f"now {sparsity:.0%}",
        bgcolor=paper(dark),
        showarrow=False,
    )
