"""Component effects: mean overlap of the variants that share a value of b, alpha or beta."""

from typing import Final

import pandas as pd
import plotly.graph_objects as go

from analysis.ranking.overlap import effects_over_models, mean_overlaps, variant_overlaps
from app.charts.chart import Chart, Drawing
from app.charts.context import Context
from app.charts.theme import SYMBOLS, apply_theme, ink, muted, series_color

_GREEK: Final = {"b": "b", "alpha": "\u03b1", "beta": "\u03b2"}


def _draw(context: Context) -> Drawing:
    means = [
        mean_overlaps(context.keep(variant_overlaps, stats, context.gate, context.fraction))
        for stats in context.models_stats.values()
    ]
    table, chance = effects_over_models(means), float(pd.concat(means)["chance"].mean())
    return Drawing(
        "component-effects",
        lambda dark: component_effects(table, chance=chance, dark=dark),
        table,
        describe(table),
        context.about(f"gate {context.gate}", *context.models_said),
    )


EFFECTS = Chart("component-effects", "explore", "What each exponent does", _draw)


def component_effects(
    table: pd.DataFrame, *, chance: float | None = None, dark: bool = False
) -> go.Figure:
    """Figure of a table `component, value, overlap, lowest, highest`: mark and range."""
    groups = table.groupby("component", sort=False)
    fig = go.Figure([_marks(i, str(name), rows, dark) for i, (name, rows) in enumerate(groups)])
    if chance is not None:
        fig.add_hline(
            y=chance,
            line={"color": muted(dark), "dash": "dot", "width": 2},
            annotation={"text": f"chance {chance:.2f}", "font": {"color": ink(dark)}},
            annotation_position="bottom left",
        )
    apply_theme(fig, dark)
    fig.update_layout(height=300, margin={"t": 24, "r": 24})
    # Room for the number right of the last mark.
    fig.update_xaxes(type="category", showgrid=False, range=[-0.6, len(table) - 0.2])
    fig.update_yaxes(title_text="overlap of pruned sets", range=[-0.03, 1.06], tickformat=".1f")
    return fig


def describe(table: pd.DataFrame) -> str:
    """One sentence: which value of each exponent depends on the text least, and by how much."""
    parts = []
    for component, rows in table.groupby("component", sort=False):
        best = rows.sort_values("overlap").iloc[-1]
        span = rows["overlap"].max() - rows["overlap"].min()
        parts.append(f"{component} = {int(best['value'])} (+{span:.2f} over the least)")
    return "Most overlap between texts with " + ", ".join(parts) + "."


def _marks(index: int, component: str, rows: pd.DataFrame, dark: bool) -> go.Scatter:
    """One component's values; no line between them: it would cross the numbers beside the marks."""
    name = _GREEK[component]
    return go.Scatter(
        x=[f"{name} = {value}" for value in rows["value"]],
        y=rows["overlap"],
        error_y={
            "type": "data",
            "symmetric": False,
            "array": rows["highest"] - rows["overlap"],
            "arrayminus": rows["overlap"] - rows["lowest"],
            "color": muted(dark),
            "thickness": 1.2,
            "width": 5,
        },
        mode="markers+text",
        text=[f"  {overlap:.2f}" for overlap in rows["overlap"]],
        textposition="middle right",
        textfont={"color": ink(dark)},
        marker={"symbol": SYMBOLS[index], "size": 12, "color": series_color(index, dark)},
        showlegend=False,
        hovertemplate="%{x}: mean %{y:.3f}<extra></extra>",
    )
