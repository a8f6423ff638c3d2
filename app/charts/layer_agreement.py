"""Agreement of two recipes per layer."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import pandas as pd
import plotly.graph_objects as go

from app.charts.chart import Drawing, chart, of_both_plans
from app.charts.theme import muted, nth_look, themed
from app.charts.traces import line_mode, series

if TYPE_CHECKING:
    from app.loaded import Loaded

_SERIES: Final = (
    ("agreement", "equal decisions"),
    ("jaccard", "Jaccard of the pruned"),
    ("kendall_tau", "Kendall tau"),
)


@chart("agreement", "compare", of_both=True)
def draw(loaded: Loaded) -> Drawing:
    """In which layers the recipes agree."""
    by_neuron = loaded.choices.spec.by_neuron
    table = loaded.neurons_compared.by_layer if by_neuron else loaded.comparison.by_layer
    return Drawing(partial(layer_agreement, table), table, describe(table), of_both_plans(loaded))


def layer_agreement(table: pd.DataFrame, *, dark: bool = False) -> go.Figure:
    """Figure of a table `layer, agreement, jaccard, kendall_tau`: one line per measure.

    Neurons have no `kendall_tau`.
    """
    layers = table["layer"].astype(str)
    lines = [
        series(
            nth_look(index, dark),
            name,
            (layers, table[column]),
            f"{name} %{{y:.2f}}",
            mode=line_mode(len(table)),
            marker={"size": 7},
        )
        for index, (column, name) in enumerate(_SERIES)
        if column in table
    ]
    low = min(0.0, float(table.get("kendall_tau", table["agreement"]).min(skipna=True) or 0))
    fig = themed(
        lines,
        dark,
        x={"title": "layer", "type": "category", "nticks": 12, "showgrid": False},
        y={"range": [low - 0.05, 1.05], "tickformat": ".1f"},
        height=300,
        hovermode="x unified",
    )
    return fig.add_hline(y=0, line={"color": muted(dark), "width": 1})


def describe(table: pd.DataFrame) -> str:
    """One sentence: the layers that agree least and most."""
    ordered = table.sort_values("agreement", kind="stable")
    least, most = ordered.iloc[0], ordered.iloc[-1]
    return (
        f"Equal decisions range from {least['agreement']:.0%} in layer {int(least['layer'])} to "
        f"{most['agreement']:.0%} in layer {int(most['layer'])}."
    )
