"""How much of each expert stays when neurons go: layer x expert, and beside whole experts."""

from functools import partial

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from scipy.stats import spearmanr

from app.charts import neuron_cut
from app.charts.chart import Drawing, chart
from app.charts.context import Context
from app.charts.theme import muted, primary, series_color, themed
from app.charts.traces import box, cells_of, heat, layer_axis, rows_height
from pruning.atoms.cuts import expert_shares
from pruning.plan import ATOMIC_GRANULARITY


@chart("neurons-kept", "explore", granularity=ATOMIC_GRANULARITY, reads_scope=True)
def draw_kept(context: Context) -> Drawing:
    """What stays of each expert when neurons compete across experts."""
    context = neuron_cut.across_experts(context)
    shares = expert_shares(neuron_cut.field(context), neuron_cut.pruned(context))
    figure = partial(kept_share_map, shares, marked=context.expert)
    return Drawing(figure, shares, describe(shares), neuron_cut.about(context))


@chart("neurons-beside-experts", "explore", granularity=ATOMIC_GRANULARITY, reads_scope=True)
def draw_beside(context: Context) -> Drawing:
    """Whether the neurons that go lie in experts that would go whole."""
    context = neuron_cut.across_experts(context)
    table = neuron_cut.beside_experts(context)
    about = neuron_cut.about(context)
    return Drawing(partial(removed_by_tenth, table), table, describe_beside(table), about)


def kept_share_map(
    table: pd.DataFrame, *, marked: tuple[int, int] | None = None, dark: bool = False
) -> go.Figure:
    """Figure of a table of `pruning.atoms.cuts.SHARE_COLUMNS`; layer 0 on top.

    `marked` is a (layer, expert) to outline.
    """
    layers = sorted(table["layer"].unique())
    place, shape = cells_of(table, layers)
    shares = np.full(shape, np.nan, dtype=np.float32)
    shares[place] = table["kept_share"]
    # Two bytes where they suffice: with four, 48 x 128 experts would be more than 64 KiB.
    most = int(table["removed"].max())
    removed = np.zeros(shape, dtype=np.uint16 if most < 1 << 16 else np.uint32)
    removed[place] = table["removed"]
    heatmap = heat(
        shares,
        "share of neurons that stays",
        dark,
        {"tickformat": ".0%"},
        y=[str(layer) for layer in layers],
        customdata=removed,
        hovertemplate="layer %{y}, expert %{x}<br>%{z:.1%} of its neurons stay, "
        "%{customdata:,} go<extra></extra>",
    )
    outline = []
    if marked is not None and marked[0] in layers:
        row, expert = layers.index(marked[0]), marked[1]
        ends = (expert - 0.5, expert + 0.5), (row - 0.5, row + 0.5)
        outline = [box(*ends, primary(dark), 3)]
    return themed(
        [heatmap],
        dark,
        x={"title": "expert", "showgrid": False},
        # Categories: hovers name the layer, not the row.
        y=layer_axis(layers, title="layer", type="category"),
        height=rows_height(layers, 26, 70),
        margin={"t": 20},
        shapes=outline,
    )


def describe(table: pd.DataFrame) -> str:
    """One sentence: how much goes, and how unevenly it is spread over the experts."""
    removed, total = int(table["removed"].sum()), int(table["neurons"].sum())
    empty = int((table["removed"] == table["neurons"]).sum())
    whole = int((table["removed"] == 0).sum())
    least, most = table["kept_share"].min(), table["kept_share"].max()
    return (
        f"{removed:,} of {total:,} neurons go ({removed / total:.1%}); experts keep {least:.0%} to "
        f"{most:.0%} of theirs: {whole} of {len(table)} keep all, {empty} keep none."
    )


def removed_by_tenth(table: pd.DataFrame, *, dark: bool = False) -> go.Figure:
    """Figure of a table of `neuron_cut.BESIDE_COLUMNS`.

    A bar for each tenth of a layer's experts by the saliency of whole experts, the lowest first:
    which share of their neurons goes. The dotted line is the share of all.
    """
    sums = table.groupby("tenth")[["removed", "neurons"]].sum()
    bars = go.Bar(
        x=[str(tenth + 1) for tenth in sums.index],
        y=sums["removed"] / sums["neurons"],
        customdata=sums,
        marker={"color": series_color(0, dark)},
        hovertemplate="tenth %{x}: %{customdata[0]:,} of %{customdata[1]:,} neurons go, "
        "%{y:.1%}<extra></extra>",
    )
    fig = themed(
        [bars],
        dark,
        x={
            "type": "category",
            "title": "tenth of each layer's experts by HEAPr of whole experts, lowest first",
            "showgrid": False,
        },
        y={"title": "neurons removed", "tickformat": ".0%", "range": [0, 1]},
        height=320,
        margin={"t": 20},
    )
    overall = float(sums["removed"].sum() / sums["neurons"].sum())
    return fig.add_hline(y=overall, line={"color": muted(dark), "dash": "dot", "width": 2})


def describe_beside(table: pd.DataFrame) -> str:
    """How far the neurons that go lie in the experts that would go, and how both orders agree."""
    removed = table["removed"].sum()
    if not removed:
        return "No neuron goes, so there is nothing to compare."
    inside = table.loc[table["gone"], "removed"].sum() / removed
    chance = table.loc[table["gone"], "neurons"].sum() / table["neurons"].sum()
    text = (
        f"{inside:.0%} of the neurons that go lie in experts that HEAPr of whole experts removes "
        f"at the same sparsity (by chance {chance:.0%})"
    )
    share = table["kept_share"].to_numpy()
    if np.ptp(share) < 1e-12 or np.ptp(table["saliency"].to_numpy()) == 0:
        return f"{text}; every expert keeps the same share, so the orders cannot be compared."
    rank = float(spearmanr(table["saliency"], share).statistic)
    return f"{text}; rank correlation of an expert's saliency with the share it keeps: {rank:.2f}."
