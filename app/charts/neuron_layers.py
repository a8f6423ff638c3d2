"""Figures of neurons: shares by layer, FLOPs saved."""

from functools import partial

import pandas as pd
import plotly.graph_objects as go

from analysis.errors import PlanError
from app.charts import neuron_cut
from app.charts.chart import Drawing, chart
from app.charts.context import Context
from app.charts.theme import muted, nth_look, themed
from app.charts.traces import series, stroke
from pruning.plan import ATOMIC_GRANULARITY
from pruning.planning.side_by_side import SideBySide

_HOVER_LAYER = "%{fullData.name}, layer %{x}: %{y:.1%}"
_HOVER_FLOPS = "%{fullData.name}: %{x:.1%} of neurons, %{y:.1%} of FLOPs"


def _scopes(context: Context) -> SideBySide:
    found = neuron_cut.scopes(context)
    if found.layers.empty:
        raise PlanError(next(iter(found.refused.values())))
    return found


@chart("neuron-layers", "plan", granularity=ATOMIC_GRANULARITY)
def draw_layers(context: Context) -> Drawing:
    """What each layer loses of its neurons, by who competes with whom."""
    table = _scopes(context).layers
    about = neuron_cut.about(context)
    return Drawing(partial(layer_lines, table), table, describe_layers(table), about)


@chart("neuron-flops", "plan", granularity=ATOMIC_GRANULARITY)
def draw_flops(context: Context) -> Drawing:
    """What removing neurons saves of a token's computation."""
    table, request = _scopes(context).flops, neuron_cut.neuron_request(context)
    measured = neuron_cut.ranking_of(context, request).routing is not None
    alt, about = describe_flops(table, measured=measured), neuron_cut.about(context)
    return Drawing(partial(flops_lines, table, measured=measured), table, alt, about)


def layer_lines(table: pd.DataFrame, *, dark: bool = False) -> go.Figure:
    """Figure of a table `series, layer, share`: fraction of each layer's neurons that is pruned.

    As HEAPr's Figures 5 and 6.
    """
    lines = [
        series(nth_look(place, dark), str(name), (line["layer"], line["share"]), _HOVER_LAYER)
        for place, (name, line) in enumerate(table.groupby("series", sort=False))
    ]
    return themed(
        lines,
        dark,
        x={"title": "layer", "showgrid": False, "dtick": max(1, table["layer"].nunique() // 8)},
        y={"title": "sparsity", "tickformat": ".0%", "rangemode": "tozero"},
        height=360,
    )


def describe_layers(table: pd.DataFrame) -> str:
    """One sentence: the layers where each series prunes most and least."""
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
    """Figure of a table `series, removed, reduction`: expert FLOPs saved against sparsity.

    One line per series. Above the dotted line, neurons of frequently chosen experts are pruned;
    all lines lie on it if routing is unknown (`measured` is false).
    """
    top = max(float(table["removed"].max()), 0.01)
    even = stroke([0, top], [0, top], muted(dark), 2, name="all experts alike", showlegend=None)
    lines = [
        series(nth_look(place, dark), str(name), (line["removed"], line["reduction"]), _HOVER_FLOPS)
        for place, (name, line) in enumerate(table.groupby("series", sort=False))
    ]
    routing = "measured routing" if measured else "experts chosen equally often"
    return themed(
        [even.update(line_dash="dot"), *lines],
        dark,
        x={"title": "sparsity", "tickformat": ".0%"},
        y={"title": f"expert FLOPs saved ({routing})", "tickformat": ".0%"},
        height=360,
    )


def describe_flops(table: pd.DataFrame, *, measured: bool = True) -> str:
    """One sentence: what each series saves at its highest sparsity."""
    words = []
    for name, line in table.groupby("series", sort=False):
        last = line.sort_values("removed").iloc[-1]
        words.append(f"{name} {last['reduction']:.0%} with {last['removed']:.0%} of neurons gone")
    routing = "by the measured routing" if measured else "if experts are chosen equally often"
    return f"FLOPs of experts saved per token {routing}: {'; '.join(words)}."
