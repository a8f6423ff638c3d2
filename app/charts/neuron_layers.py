"""Figures of neurons: shares by layer, FLOPs saved."""

import pandas as pd
import plotly.graph_objects as go

from analysis.errors import PlanError
from app.charts import neuron_cut
from app.charts.chart import Chart, Drawing
from app.charts.context import Context
from app.charts.theme import DASHES, SYMBOLS, apply_theme, muted, plain, series_color
from pruning.plan import ATOMIC_GRANULARITY
from pruning.planning.neuron_scopes import SideBySide


def _scopes(context: Context) -> SideBySide:
    found = neuron_cut.scopes(context)
    if found.layers.empty:
        raise PlanError(next(iter(found.refused.values())))
    return found


def _draw_layers(context: Context) -> Drawing:
    table = _scopes(context).layers
    return Drawing(
        "neuron-layers",
        lambda dark: layer_lines(table, dark=dark),
        table,
        describe_layers(table),
        neuron_cut.about(context),
    )


def _draw_flops(context: Context) -> Drawing:
    table, request = _scopes(context).flops, neuron_cut.neuron_request(context)
    measured = neuron_cut.ranking_of(context, request).routing is not None
    return Drawing(
        "neuron-flops",
        lambda dark: flops_lines(table, measured=measured, dark=dark),
        table,
        describe_flops(table, measured=measured),
        neuron_cut.about(context),
    )


NEURON_LAYERS = Chart(
    "neuron-layers",
    "plan",
    "What each layer loses of its neurons, by who competes with whom",
    _draw_layers,
    ATOMIC_GRANULARITY,
)
NEURON_FLOPS = Chart(
    "neuron-flops",
    "plan",
    "What removing neurons saves of a token's computation",
    _draw_flops,
    ATOMIC_GRANULARITY,
)


def layer_lines(table: pd.DataFrame, *, dark: bool = False) -> go.Figure:
    """Figure of a table `series, layer, share`: fraction of each layer's neurons that goes.

    As HEAPr's Figures 5 and 6.
    """
    fig = go.Figure()
    for place, (name, line) in enumerate(table.groupby("series", sort=False)):
        drawn = _line(place, plain(str(name)), line["layer"], line["share"], dark)
        drawn.hovertemplate = "%{fullData.name}, layer %{x}: %{y:.1%}<extra></extra>"
        fig.add_trace(drawn)
    apply_theme(fig, dark)
    fig.update_layout(height=360)
    fig.update_xaxes(
        title_text="layer", showgrid=False, dtick=max(1, table["layer"].nunique() // 8)
    )
    fig.update_yaxes(title_text="neurons removed", tickformat=".0%", rangemode="tozero")
    return fig


def describe_layers(table: pd.DataFrame) -> str:
    """One sentence: where each series removes most and least, if that differs."""
    words = []
    for name, line in table.groupby("series", sort=False):
        falling = line.sort_values("share", ascending=False, kind="stable")
        most, least = falling.iloc[0], falling.iloc[-1]
        if f"{most['share']:.0%}" == f"{least['share']:.0%}":
            words.append(f"{name} removes {most['share']:.0%} in every layer")
            continue
        words.append(
            f"{name} removes most in layer {most['layer']} ({most['share']:.0%}), least in layer "
            f"{least['layer']} ({least['share']:.0%})"
        )
    return "; ".join(words) + "."


def flops_lines(table: pd.DataFrame, *, measured: bool = True, dark: bool = False) -> go.Figure:
    """Figure of a table `series, removed, reduction`: FLOPs of experts saved against neurons gone.

    A line for each series. Above the dotted line the neurons of experts that are often chosen go;
    on it lies everything where nothing says how often experts are chosen (`measured` is false).
    """
    fig = go.Figure()
    top = max(float(table["removed"].max()), 0.01)
    fig.add_trace(
        go.Scatter(
            x=[0, top],
            y=[0, top],
            name="all experts alike",
            mode="lines",
            line={"color": muted(dark), "dash": "dot", "width": 2},
            hoverinfo="skip",
        )
    )
    for place, (name, line) in enumerate(table.groupby("series", sort=False)):
        fig.add_trace(_line(place, plain(str(name)), line["removed"], line["reduction"], dark))
    fig.update_traces(
        hovertemplate="%{fullData.name}: %{x:.1%} of neurons, %{y:.1%} of FLOPs<extra></extra>",
        selector={"mode": "lines+markers"},
    )
    apply_theme(fig, dark)
    fig.update_layout(height=360)
    fig.update_xaxes(title_text="neurons removed", tickformat=".0%")
    routing = "measured routing" if measured else "experts chosen equally often"
    fig.update_yaxes(title_text=f"expert FLOPs saved ({routing})", tickformat=".0%")
    return fig


def describe_flops(table: pd.DataFrame, *, measured: bool = True) -> str:
    """One sentence: what each series saves where it removes most."""
    words = []
    for name, line in table.groupby("series", sort=False):
        last = line.sort_values("removed").iloc[-1]
        words.append(f"{name} {last['reduction']:.0%} with {last['removed']:.0%} of neurons gone")
    routing = "by the measured routing" if measured else "if experts are chosen equally often"
    return f"FLOPs of experts saved per token {routing}: {'; '.join(words)}."


def _line(
    place: int, name: str, across: "pd.Series[float]", up: "pd.Series[float]", dark: bool
) -> go.Scatter:
    color = series_color(place, dark)
    return go.Scatter(
        x=across,
        y=up,
        name=name,
        mode="lines+markers",
        line={"color": color, "dash": DASHES[place % len(DASHES)], "width": 2},
        marker={"symbol": SYMBOLS[place % len(SYMBOLS)], "color": color, "size": 9},
    )
