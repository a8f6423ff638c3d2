"""The saliency of neurons: over each layer with its cut, and inside one expert."""

from typing import Final

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from analysis.errors import StatsError
from app.charts import neuron_cut
from app.charts.chart import Chart, Drawing
from app.charts.context import Context
from app.charts.layer_rows import layer_rows
from app.charts.theme import apply_theme, colorbar, colorscale, ink, muted, primary
from pruning.atoms.cuts import expert_shares, layer_cuts, neurons_of, saliency_histogram
from pruning.plan import ATOMIC_GRANULARITY

MOST_BARS: Final = 400


def most_divided(shares: pd.DataFrame) -> tuple[int, int]:
    """Layer and expert whose kept share is nearest to a half; of equal ones the first.

    Args:
        shares: table of `SHARE_COLUMNS`.
    """
    row = int((shares["kept_share"] - 0.5).abs().to_numpy().argmin())
    return int(shares["layer"].iloc[row]), int(shares["expert"].iloc[row])


def _draw_layers(context: Context) -> Drawing:
    field, gone = neuron_cut.field(context), neuron_cut.pruned(context)
    histogram, cuts = saliency_histogram(field, gone), layer_cuts(field, gone)
    if histogram.empty:
        raise StatsError("No neuron has a saliency above 0, so there is nothing to draw.")
    return Drawing(
        "neuron-saliency",
        lambda dark: saliency_by_layer(histogram, cuts, dark=dark),
        histogram,
        describe_layers(cuts),
        neuron_cut.about(context),
    )


def _draw_expert(context: Context) -> Drawing:
    field, gone = neuron_cut.field(context), neuron_cut.pruned(context)
    halved = most_divided(expert_shares(field, gone))
    layer, expert = context.expert or halved
    table = neurons_of(field, gone, layer, expert)
    # Command lines draw the expert that is most nearly halved.
    name = "neurons-of-expert"
    return Drawing(
        name if (layer, expert) == halved else f"{name}-{layer}.{expert}",
        lambda dark: neuron_bars(table, dark=dark),
        table,
        describe_neurons(table),
        neuron_cut.about(context, f"layer {layer}, expert {expert}"),
    )


NEURON_SALIENCY = Chart(
    "neuron-saliency",
    "explore",
    "How salient the neurons of each layer are",
    _draw_layers,
    ATOMIC_GRANULARITY,
    reads_scope=True,
)
NEURONS_OF_EXPERT = Chart(
    "neurons-of-expert",
    "explore",
    "The neurons of the expert that is most nearly halved",
    _draw_expert,
    ATOMIC_GRANULARITY,
    reads_scope=True,
)


def saliency_by_layer(
    histogram: pd.DataFrame, cuts: pd.DataFrame, *, dark: bool = False
) -> go.Figure:
    """Figure of tables of `HISTOGRAM_COLUMNS` and `CUT_COLUMNS` of `pruning.atoms.cuts`.

    A row a layer, its neurons by saliency on a logarithmic scale, in shares of the row; the cut is
    a line across each row.
    """
    layers = histogram["layer"].unique().tolist()
    bins = len(histogram) // len(layers)
    counts = (histogram["kept"] + histogram["pruned"]).to_numpy().reshape(len(layers), bins)
    gone = histogram["pruned"].to_numpy().reshape(len(layers), bins)
    middles = np.sqrt((histogram["low"] * histogram["high"]).to_numpy())[:bins]
    fig = go.Figure(
        go.Heatmap(
            x=np.log10(middles).astype(np.float32),
            z=(counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)).astype(np.float32),
            colorscale=colorscale(),
            colorbar=colorbar("share of the layer's neurons", dark, tickformat=".0%"),
            customdata=np.dstack([counts, gone, np.repeat(layers, bins).reshape(-1, bins)]).astype(
                np.int32
            ),
            hovertemplate="layer %{customdata[2]}: %{customdata[0]:,} neurons near 10^%{x:.2f}, "
            "%{customdata[1]:,} of them go<extra></extra>",
        )
    )
    _cut_lines(fig, cuts[cuts["cut"] > 0], layers, dark)
    apply_theme(fig, dark)
    low, high = float(np.log10(middles[0])), float(np.log10(middles[-1]))
    powers = np.arange(np.ceil(low), np.floor(high) + 1, max(1, (high - low) // 8))
    fig.update_xaxes(
        title_text="saliency (higher = keep), logarithmic",
        tickvals=powers.tolist(),
        ticktext=[f"10<sup>{int(power)}</sup>" for power in powers],
        showgrid=False,
    )
    layer_rows(fig, layers, 30, 80)
    return fig


def _cut_lines(fig: go.Figure, cuts: pd.DataFrame, layers: list[int], dark: bool) -> None:
    rows = [layers.index(layer) for layer in cuts["layer"] if layer in layers]
    places = np.log10(cuts.loc[cuts["layer"].isin(layers), "cut"].to_numpy())
    # None parts the strokes: one trace draws the cut of every layer.
    fig.add_trace(
        go.Scatter(
            x=[value for place in places for value in (place, place, None)],
            y=[value for row in rows for value in (row - 0.5, row + 0.5, None)],
            mode="lines",
            name="highest saliency that goes",
            line={"color": "#ff5fa2", "width": 3},
            hoverinfo="skip",
            showlegend=True,
        )
    )


def describe_layers(cuts: pd.DataFrame) -> str:
    """One sentence: which layers lose most and least, and how many neurons are worth nothing."""
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

    Beyond MOST_BARS neurons a bar stands for several that follow one another, kept and pruned
    ones apart, as tall as their mean. The scale is logarithmic; a bar of 0 has no height.
    """
    bars = _bars(table)
    fig = go.Figure()
    looks = ((True, "kept", primary(dark), ""), (False, "pruned", muted(dark), "/"))
    for kept, name, color, pattern in looks:
        part = bars[bars["kept"] == kept]
        fig.add_trace(
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
    stay = int(table["kept"].sum())
    apply_theme(fig, dark)
    if 0 < stay < len(table):
        fig.add_vline(x=stay + 0.5, line={"color": ink(dark), "width": 2, "dash": "dash"})
    fig.update_layout(height=320, bargap=0, barmode="overlay")
    fig.update_xaxes(
        title_text="rank within the expert (1 = first to keep)",
        range=[0.5, len(table) + 0.5],
        showgrid=False,
    )
    fig.update_yaxes(title_text="saliency", type="log", exponentformat="power")
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
    """One sentence: how many stay, and which share of the expert's saliency they hold."""
    stay, total = int(table["kept"].sum()), float(table["saliency"].sum())
    text = f"{stay} of {len(table)} neurons stay"
    if total > 0:
        held = float(table.loc[table["kept"], "saliency"].sum()) / total
        text += f" and hold {held:.1%} of the expert's saliency"
    return f"{text}."
