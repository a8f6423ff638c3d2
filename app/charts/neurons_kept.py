"""Neurons kept per expert: layer x expert, and compared with whole experts."""

from functools import partial
from typing import Any, Final

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from numpy.typing import NDArray
from scipy.stats import spearmanr

from app.charts import neuron_cut
from app.charts.chart import Drawing, chart
from app.charts.context import Context
from app.charts.theme import muted, series_color, themed
from app.charts.traces import cells_of, heat, layer_axis, pin, rows_height, targets
from pruning.atoms.cuts import expert_shares
from pruning.plan import ATOMIC_GRANULARITY

_DECLARED: Final[dict[str, Any]] = {
    "granularity": ATOMIC_GRANULARITY,
    "reads_scope": True,
    "crosses_experts": True,
}


@chart("neurons-kept", "explore", **_DECLARED)
def draw_kept(context: Context) -> Drawing:
    """What stays of each expert when neurons compete across experts."""
    context = neuron_cut.across_experts(context)
    shares = expert_shares(neuron_cut.field(context), neuron_cut.pruned(context))
    figure = partial(kept_share_map, shares, marked=context.expert)
    return Drawing(figure, shares, describe(shares), neuron_cut.about(context))


@chart("neurons-beside-experts", "explore", **_DECLARED)
def draw_beside(context: Context) -> Drawing:
    """Whether pruned neurons concentrate in low-ranked experts."""
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
    percent = np.full(shape, np.nan, dtype=np.float32)
    percent[place] = (100 * table["kept_share"]).round()
    # Smallest dtype, so that 48 x 128 experts take less than 64 KiB.
    heatmap = heat(
        percent if np.isnan(percent).any() else percent.astype(np.uint8),
        "share of neurons that stays",
        dark,
        {"ticksuffix": "%"},
        zmax=100,
        y=[str(layer) for layer in layers],
        hoverinfo="skip",
    )
    across, down = (_narrow(table[column]) for column in ("expert", "layer"))
    marks = targets(
        across,
        down,
        _narrow(table["removed"]),
        10,
        hovertemplate="layer %{y}, expert %{x}: %{customdata:,} neurons go<extra></extra>",
    )
    pins = []
    if marked is not None and marked[0] in layers:
        pins = pin(marked[1], layers.index(marked[0]), dark)
    return themed(
        [heatmap, marks],
        dark,
        x={"title": "expert", "showgrid": False, "range": [-0.5, shape[1] - 0.5]},
        # Categories: hovers name the layer, not the row.
        y=layer_axis(layers, title="layer", type="category"),
        height=rows_height(layers, 26, 70),
        # Any click goes to the nearest cell's marker, however large the cell is drawn.
        hovermode="closest",
        hoverdistance=-1,
        shapes=pins,
    )


def _narrow(counts: "pd.Series[int]") -> NDArray[np.unsignedinteger]:
    """Counts in the smallest unsigned dtype."""
    return counts.to_numpy(np.min_scalar_type(int(counts.max())))


def clicked_expert(event: object) -> tuple[int, int] | None:
    """Layer and expert in a selection of `st.plotly_chart` on the map; None if not valid."""
    try:
        point = event["selection"]["points"][-1]  # type: ignore[index]
        return int(point["y"]), int(point["x"])
    except (KeyError, IndexError, TypeError, ValueError):
        return None


def describe(table: pd.DataFrame) -> str:
    """One sentence: the sparsity, and how unevenly it is spread over the experts."""
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

    A bar per tenth of a layer's experts by whole-expert saliency, lowest first:
    the share of their neurons that is pruned. The dotted line is the overall share.
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
        y={"title": "sparsity (neurons)", "tickformat": ".0%", "range": [0, 1]},
        height=320,
    )
    overall = float(sums["removed"].sum() / sums["neurons"].sum())
    return fig.add_hline(y=overall, line={"color": muted(dark), "dash": "dot", "width": 2})


def describe_beside(table: pd.DataFrame) -> str:
    """Overlap of pruned neurons with pruned whole experts, and agreement of both orders."""
    removed = table["removed"].sum()
    if not removed:
        return "No neuron goes, so there is nothing to compare."
    inside = table.loc[table["gone"], "removed"].sum() / removed
    chance = table.loc[table["gone"], "neurons"].sum() / table["neurons"].sum()
    text = (
        f"{inside:.0%} of the pruned neurons are in experts that whole-expert HEAPr prunes "
        f"at the same sparsity (by chance {chance:.0%})"
    )
    share = table["kept_share"].to_numpy()
    if np.ptp(share) < 1e-12 or np.ptp(table["saliency"].to_numpy()) == 0:
        return f"{text}; every expert keeps the same share, so the orders cannot be compared."
    rank = float(spearmanr(table["saliency"], share).statistic)
    return f"{text}; rank correlation of an expert's saliency with the share it keeps: {rank:.2f}."
