"""The saliency of neurons: over each layer with its cut, and inside one expert."""

from functools import partial
from typing import Final

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from analysis.errors import StatsError
from app.charts import neuron_cut
from app.charts.chart import Drawing, chart
from app.charts.context import Context
from app.charts.theme import ink, muted, primary, themed
from app.charts.traces import as_float32, heat, layer_axis, rows_height, stroke
from pruning.atoms.cuts import expert_shares, layer_cuts, neurons_of, saliency_histogram
from pruning.plan import ATOMIC_GRANULARITY

MOST_BARS: Final = 400


def most_divided(shares: pd.DataFrame) -> tuple[int, int]:
    """Layer and expert of `SHARE_COLUMNS` whose kept share is nearest to a half, the first."""
    row = int((shares["kept_share"] - 0.5).abs().to_numpy().argmin())
    return int(shares["layer"].iloc[row]), int(shares["expert"].iloc[row])


@chart("neuron-saliency", "explore", granularity=ATOMIC_GRANULARITY, reads_scope=True)
def draw_layers(context: Context) -> Drawing:
    """How salient the neurons of each layer are."""
    field, gone = neuron_cut.field(context), neuron_cut.pruned(context)
    histogram, cuts = saliency_histogram(field, gone), layer_cuts(field, gone)
    if histogram.empty:
        raise StatsError("No neuron has a saliency above 0, so there is nothing to draw.")
    figure = partial(saliency_by_layer, histogram, cuts)
    return Drawing(figure, histogram, describe_layers(cuts), neuron_cut.about(context))


@chart("neurons-of-expert", "explore", granularity=ATOMIC_GRANULARITY, reads_scope=True)
def draw_expert(context: Context) -> Drawing:
    """The neurons of the expert that is most nearly halved."""
    field, gone = neuron_cut.field(context), neuron_cut.pruned(context)
    halved = most_divided(expert_shares(field, gone))
    layer, expert = context.expert or halved
    table = neurons_of(field, gone, layer, expert)
    about = neuron_cut.about(context, f"layer {layer}, expert {expert}")
    # Command lines draw the expert that is most nearly halved.
    name = "" if (layer, expert) == halved else f"neurons-of-expert-{layer}.{expert}"
    return Drawing(partial(neuron_bars, table), table, describe_neurons(table), about, name)


def saliency_by_layer(
    histogram: pd.DataFrame, cuts: pd.DataFrame, *, dark: bool = False
) -> go.Figure:
    """Figure of tables of `HISTOGRAM_COLUMNS` and `CUT_COLUMNS` of `pruning.atoms.cuts`.

    A row per layer, its neurons by saliency on a logarithmic scale, in shares of the row; the cut
    is a line across each row.
    """
    layers = histogram["layer"].unique().tolist()
    bins = len(histogram) // len(layers)
    counts = (histogram["kept"] + histogram["pruned"]).to_numpy().reshape(len(layers), bins)
    gone = histogram["pruned"].to_numpy().reshape(len(layers), bins)
    middles = np.log10(np.sqrt((histogram["low"] * histogram["high"]).to_numpy())[:bins])
    said = np.dstack([counts, gone, np.repeat(layers, bins).reshape(-1, bins)])
    heatmap = heat(
        as_float32(counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)),
        "share of the layer's neurons",
        dark,
        {"tickformat": ".0%"},
        x=as_float32(middles),
        zmin=None,
        zmax=None,
        hoverongaps=None,
        customdata=said.astype(np.int32),
        hovertemplate="layer %{customdata[2]}: %{customdata[0]:,} neurons near 10^%{x:.2f}, "
        "%{customdata[1]:,} of them go<extra></extra>",
    )
    cuts = cuts[(cuts["cut"] > 0) & cuts["layer"].isin(layers)]
    ends = [
        (np.log10(cut), layers.index(layer)) for layer, cut in cuts[["layer", "cut"]].to_numpy()
    ]
    line = stroke(
        # None separates strokes: one trace draws the cut of every layer.
        [value for place, _ in ends for value in (place, place, None)],
        [value for _, row in ends for value in (row - 0.5, row + 0.5, None)],
        "#ff5fa2",
        3,
        name="highest saliency that goes",
        showlegend=True,
    )
    low, high = float(middles[0]), float(middles[-1])
    powers = np.arange(np.ceil(low), np.floor(high) + 1, max(1, (high - low) // 8))
    return themed(
        [heatmap, line],
        dark,
        x={
            "title": "saliency (higher = keep), logarithmic",
            "tickvals": powers.tolist(),
            "ticktext": [f"10<sup>{int(power)}</sup>" for power in powers],
            "showgrid": False,
        },
        y=layer_axis(layers, title="layer"),
        height=rows_height(layers, 30, 80),
    )


def describe_layers(cuts: pd.DataFrame) -> str:
    """One sentence: layers that lose most and least, and the number of neurons with saliency 0."""
    shares = (cuts["removed"] / cuts["neurons"]).to_numpy()
    layers, most, least = cuts["layer"].tolist(), int(shares.argmax()), int(shares.argmin())
    zeros = int(cuts["zeros"].sum())
    silent = f" {zeros:,} neurons have saliency 0 and are not drawn." if zeros else ""
    if np.isclose(shares[most], shares[least], atol=5e-4):
        return f"Every layer loses {shares[most]:.1%} of its neurons.{silent}"
    return (
        f"Layer {layers[most]} loses most of its neurons ({shares[most]:.1%}), layer "
        f"{layers[least]} least ({shares[least]:.1%}).{silent}"
    )


def neuron_bars(table: pd.DataFrame, *, dark: bool = False) -> go.Figure:
    """Figure of a table of `NEURON_TABLE_COLUMNS`: the neurons of an expert, first to keep left.

    Beyond MOST_BARS neurons a bar is the mean of several consecutive ones, kept and pruned
    ones separately. The scale is logarithmic; a bar of 0 has no height.
    """
    bars = _bars(table)
    traces = []
    looks = ((True, "kept", primary(dark), ""), (False, "pruned", muted(dark), "/"))
    for kept, name, color, pattern in looks:
        part = bars[bars["kept"] == kept]
        traces.append(
            go.Bar(
                x=part["middle"],
                y=part["saliency"],
                width=part["count"],
                name=name,
                customdata=part[["first", "last", "count"]],
                marker={"color": color, "line": {"width": 0}, "pattern": {"shape": pattern}},
                hovertemplate=f"ranks %{{customdata[0]}} to %{{customdata[1]}}: saliency "
                f"%{{y:.3g}}, {name}<extra></extra>",
            )
        )
    fig = themed(
        traces,
        dark,
        x={
            "title": "rank within the expert (1 = first to keep)",
            "range": [0.5, len(table) + 0.5],
            "showgrid": False,
        },
        y={"title": "saliency", "type": "log", "exponentformat": "power"},
        height=320,
        bargap=0,
        barmode="overlay",
    )
    stay = int(table["kept"].sum())
    if 0 < stay < len(table):
        fig.add_vline(x=stay + 0.5, line={"color": ink(dark), "width": 2, "dash": "dash"})
    return fig


def _bars(table: pd.DataFrame) -> pd.DataFrame:
    """Table `first, last, middle, count, saliency, kept`: ranks count from 1."""
    size = -(-len(table) // MOST_BARS)
    places = table["rank"].to_numpy()
    runs = pd.DataFrame({"run": places // size, "kept": table["kept"].to_numpy()})
    groups = table.groupby([runs["run"].to_numpy(), runs["kept"].to_numpy()], sort=False)
    bars = groups.agg(
        first=("rank", "min"),
        last=("rank", "max"),
        count=("rank", "size"),
        saliency=("saliency", "mean"),
        kept=("kept", "first"),
    ).reset_index(drop=True)
    bars[["first", "last"]] += 1
    return bars.assign(middle=(bars["first"] + bars["last"]) / 2)


def describe_neurons(table: pd.DataFrame) -> str:
    """One sentence: how many are kept, and their share of the expert's saliency."""
    stay, total = int(table["kept"].sum()), float(table["saliency"].sum())
    text = f"{stay} of {len(table)} neurons stay"
    if total > 0:
        held = float(table.loc[table["kept"], "saliency"].sum()) / total
        text += f" and hold {held:.1%} of the expert's saliency"
    return f"{text}."
