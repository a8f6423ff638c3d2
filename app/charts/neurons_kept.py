"""How much of each expert stays when neurons go: layer x expert, and beside whole experts."""

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from scipy.stats import spearmanr

from app.charts import neuron_cut
from app.charts.chart import Chart, Drawing
from app.charts.context import Context
from app.charts.layer_rows import layer_rows
from app.charts.theme import apply_theme, colorbar, colorscale, muted, primary, series_color
from pruning.atoms.cuts import expert_shares
from pruning.plan import ATOMIC_GRANULARITY


def _draw_kept(context: Context) -> Drawing:
    shares = expert_shares(neuron_cut.field(context), neuron_cut.pruned(context))
    return Drawing(
        "neurons-kept",
        lambda dark: kept_share_map(shares, marked=context.expert, dark=dark),
        shares,
        describe(shares),
        neuron_cut.about(context),
    )


def _draw_beside(context: Context) -> Drawing:
    table = neuron_cut.beside_experts(context)
    return Drawing(
        "neurons-beside-experts",
        lambda dark: removed_by_tenth(table, dark=dark),
        table,
        describe_beside(table),
        neuron_cut.about(context),
    )


NEURONS_KEPT = Chart(
    "neurons-kept",
    "explore",
    "What stays of each expert when neurons go",
    _draw_kept,
    ATOMIC_GRANULARITY,
    reads_scope=True,
)
NEURONS_BESIDE_EXPERTS = Chart(
    "neurons-beside-experts",
    "explore",
    "Whether the neurons that go lie in experts that would go whole",
    _draw_beside,
    ATOMIC_GRANULARITY,
    reads_scope=True,
)


def kept_share_map(
    table: pd.DataFrame, *, marked: tuple[int, int] | None = None, dark: bool = False
) -> go.Figure:
    """Figure of a table of `pruning.atoms.cuts.SHARE_COLUMNS`; layer 0 on top.

    Args:
        table: one row an expert.
        marked: layer and expert to outline.
        dark: theme.
    """
    layers = sorted(table["layer"].unique())
    rows = np.searchsorted(layers, table["layer"].to_numpy())
    place = (rows, table["expert"].to_numpy())
    shape = (len(layers), int(table["expert"].max()) + 1)
    shares = np.full(shape, np.nan, dtype=np.float32)
    shares[place] = table["kept_share"]
    # Two bytes where they suffice: with four, 48 x 128 experts would be more than 64 KiB.
    most = int(table["removed"].max())
    removed = np.zeros(shape, dtype=np.uint16 if most < 1 << 16 else np.uint32)
    removed[place] = table["removed"]
    fig = go.Figure(
        go.Heatmap(
            y=[str(layer) for layer in layers],
            z=shares,
            zmin=0,
            zmax=1,
            colorscale=colorscale(),
            colorbar=colorbar("share of neurons that stays", dark, tickformat=".0%"),
            customdata=removed,
            hoverongaps=False,
            hovertemplate=(
                "layer %{y}, expert %{x}<br>%{z:.1%} of its neurons stay, %{customdata:,} go"
                "<extra></extra>"
            ),
        )
    )
    apply_theme(fig, dark)
    fig.update_layout(margin={"t": 20})
    fig.update_xaxes(title_text="expert", showgrid=False)
    layer_rows(fig, layers, 26, 70)
    fig.update_yaxes(type="category")  # hovers name the layer, not the row
    if marked is not None and marked[0] in layers:
        _outline(fig, layers.index(marked[0]), marked[1], dark)
    return fig


def _outline(fig: go.Figure, row: int, expert: int, dark: bool) -> None:
    fig.add_shape(
        type="rect",
        x0=expert - 0.5,
        x1=expert + 0.5,
        y0=row - 0.5,
        y1=row + 0.5,
        line={"color": primary(dark), "width": 3},
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
    """Figure of a table of `app.charts.neuron_evidence.BESIDE_COLUMNS`.

    A bar for each tenth of a layer's experts by the saliency of whole experts, the lowest first:
    which share of their neurons goes. The dotted line is the share of all.
    """
    sums = table.groupby("tenth")[["removed", "neurons"]].sum()
    overall = float(sums["removed"].sum() / sums["neurons"].sum())
    fig = go.Figure(
        go.Bar(
            x=[str(tenth + 1) for tenth in sums.index],
            y=sums["removed"] / sums["neurons"],
            customdata=sums,
            marker={"color": series_color(0, dark)},
            hovertemplate="tenth %{x}: %{customdata[0]:,} of %{customdata[1]:,} neurons go, "
            "%{y:.1%}<extra></extra>",
        )
    )
    fig.add_hline(y=overall, line={"color": muted(dark), "dash": "dot", "width": 2})
    apply_theme(fig, dark)
    fig.update_layout(height=320, margin={"t": 20})
    fig.update_xaxes(
        type="category",
        title_text="tenth of each layer's experts by HEAPr of whole experts, lowest first",
        showgrid=False,
    )
    fig.update_yaxes(title_text="neurons removed", tickformat=".0%", range=[0, 1])
    return fig


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
