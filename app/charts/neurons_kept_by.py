"""How alike two plans treat the neurons of each expert."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from app.charts.chart import Drawing, of_both_plans
from app.charts.theme import themed
from app.charts.traces import (
    Names,
    Place,
    cells_of,
    drags,
    heat,
    layer_axis,
    pin,
    rows_height,
    takes_clicks,
    targets,
)

if TYPE_CHECKING:
    from app.loaded import Loaded

_HOVER = (
    "layer %{customdata[0]}, expert %{customdata[1]}: both keep %{customdata[2]:,}, only A "
    "%{customdata[3]:,}, only B %{customdata[4]:,}, neither %{customdata[5]:,}<extra></extra>"
)


def drawing(loaded: Loaded) -> Drawing:
    """The map of both plans, and their numbers."""
    table, names = loaded.neurons_compared.table, loaded.names
    figure = partial(alike_map, table, marked=loaded.choices.expert)
    return Drawing(figure, table, describe(table, names), of_both_plans(loaded))


def alike_map(table: pd.DataFrame, *, marked: Place | None = None, dark: bool = False) -> go.Figure:
    """Figure of a table of NEURONS_COMPARED_COLUMNS: the share that both decide alike."""
    layers = sorted(table["layer"].unique())
    place, shape = cells_of(table, layers)
    alike = np.full(shape, np.nan, dtype=np.float32)
    alike[place] = table["alike"]
    columns = table[["layer", "expert", "both", "only_a", "only_b", "neither"]].to_numpy(np.int32)
    carried = np.zeros((*shape, columns.shape[1]), dtype=np.int32)
    carried[place] = columns
    cells = heat(
        alike,
        "neurons decided alike",
        dark,
        {"tickformat": ".0%"},
        customdata=carried,
        hovertemplate=_HOVER,
    )
    traces: list[go.Heatmap | go.Scatter] = [cells]
    if takes_clicks(len(table)):
        cells.update(hoverinfo="skip", hovertemplate=None, customdata=None)
        traces.append(targets(place[1], place[0], columns, 10, hovertemplate=_HOVER))
    pins = []
    if marked is not None and marked[0] in layers:
        pins = pin(marked[1], layers.index(marked[0]), dark)
    return themed(
        traces,
        dark,
        x={"title": "expert", "range": [-0.5, shape[1] - 0.5], "showgrid": False},
        y=layer_axis(layers, title="layer"),
        height=max(420, rows_height(layers, 26, 70)),
        # Any click goes to the nearest cell's mark, however large the cell is drawn.
        hovermode="closest",
        hoverdistance=-1,
        shapes=pins,
        dragmode=drags(len(table)),
    )


def describe(table: pd.DataFrame, names: Names) -> str:
    """One sentence: how many neurons both keep, only one, neither."""
    both, only_a, only_b, neither = (
        int(table[state].sum()) for state in ("both", "only_a", "only_b", "neither")
    )
    return (
        f"Of {both + only_a + only_b + neither:,} neurons both plans keep {both:,} and prune "
        f"{neither:,}; only A ({names[0]}) keeps {only_a:,}, only B ({names[1]}) {only_b:,}."
    )
