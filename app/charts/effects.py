"""Component effects: mean overlap of the variants that share a value of b, alpha or beta."""

from functools import partial
from typing import Final

import pandas as pd
import plotly.graph_objects as go

from analysis.ranking.overlap import effects_over_models, mean_overlaps, variant_overlaps
from app.charts.chart import Drawing, chart
from app.charts.context import Context
from app.charts.theme import ink, muted, nth_look, themed
from app.charts.traces import OVERLAP_AXIS, series, spread

_GREEK: Final = {"b": "b", "alpha": "\u03b1", "beta": "\u03b2"}


@chart("component-effects", "explore")
def draw(context: Context) -> Drawing:
    """What each exponent does."""
    means = [
        mean_overlaps(context.keep(variant_overlaps, stats, context.gate, context.fraction))
        for stats in context.models_stats.values()
    ]
    table, by_chance = effects_over_models(means), float(pd.concat(means)["chance"].mean())
    figure = partial(component_effects, table, chance=by_chance)
    about = context.about(f"gate {context.gate}", *context.models_said)
    return Drawing(figure, table, describe(table), about)


def component_effects(
    table: pd.DataFrame, *, chance: float | None = None, dark: bool = False
) -> go.Figure:
    """Figure of a table `component, value, overlap, lowest, highest`: mark and range."""
    marks = []
    for index, (component, rows) in enumerate(table.groupby("component", sort=False)):
        # No line between them: it would cross the numbers beside the marks.
        marks.append(
            series(
                nth_look(index, dark),
                str(component),
                (
                    [f"{_GREEK[str(component)]} = {value}" for value in rows["value"]],
                    rows["overlap"],
                ),
                "%{x}: mean %{y:.3f}",
                mode="markers+text",
                text=[f"  {overlap:.2f}" for overlap in rows["overlap"]],
                textposition="middle right",
                textfont={"color": ink(dark)},
                marker={"size": 12},
                error_y=spread(
                    rows["overlap"],
                    rows["lowest"],
                    rows["highest"],
                    symmetric=False,
                    color=muted(dark),
                    thickness=1.2,
                    width=5,
                ),
                showlegend=False,
            )
        )
    fig = themed(
        marks,
        dark,
        # Room for the number right of the last mark.
        x={"type": "category", "showgrid": False, "range": [-0.6, len(table) - 0.2]},
        y=OVERLAP_AXIS | {"title": "overlap of pruned sets"},
        height=300,
        margin={"t": 24, "r": 24},
    )
    if chance is not None:
        fig.add_hline(
            y=chance,
            line={"color": muted(dark), "dash": "dot", "width": 2},
            annotation={"text": f"chance {chance:.2f}", "font": {"color": ink(dark)}},
            annotation_position="bottom left",
        )
    return fig


def describe(table: pd.DataFrame) -> str:
    """One sentence: which value of each exponent depends on the corpus least, and by how much."""
    parts = []
    for component, rows in table.groupby("component", sort=False):
        best = rows.sort_values("overlap").iloc[-1]
        span = rows["overlap"].max() - rows["overlap"].min()
        parts.append(f"{component} = {int(best['value'])} (+{span:.2f} over the least)")
    return "Most overlap between corpora with " + ", ".join(parts) + "."
