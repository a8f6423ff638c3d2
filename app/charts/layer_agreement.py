"""How far two recipes agree, layer by layer."""

from typing import Final

import pandas as pd
import plotly.graph_objects as go

from app.charts.chart import Chart, Drawing
from app.charts.context import Context
from app.charts.theme import DASHES, SYMBOLS, apply_theme, muted, series_color

_SERIES: Final = (
    ("agreement", "equal decisions"),
    ("jaccard", "Jaccard of the pruned"),
    ("kendall_tau", "Kendall tau"),
)


def _draw(context: Context) -> Drawing:
    table = context.comparison.by_layer
    return Drawing(
        "agreement",
        lambda dark: layer_agreement(table, dark=dark),
        table,
        describe(table),
        context.about_both(),
    )


AGREEMENT = Chart("agreement", "compare", "In which layers the recipes agree", _draw)


def layer_agreement(table: pd.DataFrame, *, dark: bool = False) -> go.Figure:
    """Figure of a table `layer, agreement, jaccard, kendall_tau`: one line a measure."""
    fig = go.Figure()
    layers = table["layer"].astype(str)
    for index, (column, name) in enumerate(_SERIES):
        fig.add_trace(
            go.Scatter(
                x=layers,
                y=table[column],
                name=name,
                mode="lines+markers",
                line={
                    "color": series_color(index, dark),
                    "dash": DASHES[index],
                    "width": 2,
                },
                marker={"symbol": SYMBOLS[index], "size": 7},
                hovertemplate=f"{name} %{{y:.2f}}<extra></extra>",
            )
        )
    fig.add_hline(y=0, line={"color": muted(dark), "width": 1})
    apply_theme(fig, dark)
    fig.update_layout(height=300, hovermode="x unified", margin={"t": 30})
    fig.update_xaxes(title_text="layer", type="category", nticks=16, showgrid=False)
    low = min(0.0, float(table["kendall_tau"].min(skipna=True) or 0))
    fig.update_yaxes(range=[low - 0.05, 1.05], tickformat=".1f")
    return fig


def describe(table: pd.DataFrame) -> str:
    """One sentence: the layers that agree least and most."""
    ordered = table.sort_values("agreement", kind="stable")
    least, most = ordered.iloc[0], ordered.iloc[-1]
    return (
        f"Equal decisions range from {least['agreement']:.0%} in layer {int(least['layer'])} to "
        f"{most['agreement']:.0%} in layer {int(most['layer'])}."
    )
