"""Charts of neurons: kept per expert, their saliency, what each layer loses, FLOPs saved."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from analysis.errors import PlanError, StatsError
from app.charts import neuron_cut
from app.charts.chart import Drawing, chart
from app.charts.theme import ink, muted, nth_look, primary, series_color, themed
from app.charts.traces import (
    Place,
    as_float32,
    cells_of,
    heat,
    layer_axis,
    line_mode,
    pin,
    rows_height,
    series,
    stroke,
    targets,
)
from pruning.plan.neuron_cuts import expert_shares, layer_cuts, neurons_of, saliency_histogram
from pruning.plan.plan import NEURON_GRANULARITY
from pruning.planning.side_by_side import SideBySide

if TYPE_CHECKING:
    from app.loaded import Loaded

MOST_BARS: Final = 400
MOST_TARGETS: Final = 1 << 14  # experts of the map; of more a browser takes five seconds
_HOVER_LAYER = "%{fullData.name}, layer %{x}: %{y:.1%}"
_HOVER_FLOPS = "%{fullData.name}: %{x:.1%} of neurons, %{y:.1%} of FLOPs"
_DECLARED: Final[dict[str, Any]] = {
    "granularity": NEURON_GRANULARITY,
}


@chart("neurons-kept", "explore", **_DECLARED)
def draw_kept(loaded: Loaded) -> Drawing:
    """What stays of each expert: of its neurons, or where all lose the same, of its saliency."""
    shares = expert_shares(neuron_cut.field(loaded), neuron_cut.pruned(loaded))
    figure = partial(kept_share_map, shares, marked=loaded.choices.expert)
    return Drawing(figure, shares, describe_kept(shares), neuron_cut.about(loaded))


@chart("neurons-beside-experts", "explore", **_DECLARED)
def draw_tenths(loaded: Loaded) -> Drawing:
    """Whether pruned neurons concentrate in low-ranked experts."""
    table = neuron_cut.heapr_comparison(loaded)
    about = neuron_cut.about(loaded)
    return Drawing(partial(removed_by_tenth, table), table, describe_tenths(table), about)


def kept_share_map(
    table: pd.DataFrame, *, marked: Place | None = None, dark: bool = False
) -> go.Figure:
    """Figure of a table of `neuron_cuts.SHARE_COLUMNS`; `marked` is a (layer, expert)."""
    layers = sorted(table["layer"].unique())
    place, shape = cells_of(table, layers)
    percent = np.full(shape, np.nan, dtype=np.float32)
    share, what = table["kept_share"], "neurons"
    if is_even := share.min() == share.max():
        share, what = table["kept_saliency"], "saliency"
    percent[place] = (100 * share).round()
    # Smallest dtype, so that 48 x 128 experts take less than 64 KiB.
    heatmap = heat(
        percent if np.isnan(percent).any() else percent.astype(np.uint8),
        f"share of {what} that stays",
        dark,
        {"ticksuffix": "%"},
        zmin=None if is_even else 0,
        zmax=100,
        y=[str(layer) for layer in layers],
        hoverinfo="skip",
    )
    # In the smallest dtypes that hold them, as the percentages.
    across, down, removed = (
        table[column].to_numpy(np.min_scalar_type(int(table[column].max())))
        for column in ("expert", "layer", "removed")
    )
    hover = "layer %{y}, expert %{x}: %{customdata:,} neurons go<extra></extra>"
    traces: list[Any] = [heatmap]
    if len(table) <= MOST_TARGETS:
        traces.append(targets(across, down, removed, 10, hovertemplate=hover))
    else:
        gone = np.zeros(shape, dtype=removed.dtype)
        gone[place] = removed
        heatmap.update(customdata=gone, hoverinfo=None, hovertemplate=hover)
    pins = []
    if marked is not None and marked[0] in layers:
        pins = pin(marked[1], layers.index(marked[0]), dark)
    return themed(
        traces,
        dark,
        x={"title": "expert", "showgrid": False, "range": [-0.5, shape[1] - 0.5]},
        # Categories: hovers name the layer, not the row.
        y=layer_axis(layers, title="layer", type="category"),
        height=max(420, rows_height(layers, 26, 70)),
        # Any click goes to the nearest cell's marker, however large the cell is drawn.
        hovermode="closest",
        hoverdistance=-1,
        shapes=pins,
    )


def clicked_expert(event: object) -> Place | None:
    """Layer and expert in a selection of `st.plotly_chart` on the map, or None."""
    try:
        point = event["selection"]["points"][-1]  # type: ignore[index]
        return int(point["y"]), int(point["x"])
    except (KeyError, IndexError, TypeError, ValueError):
        return None


def describe_kept(table: pd.DataFrame) -> str:
    """One sentence: the sparsity, and how unevenly it is spread over the experts."""
    removed, total = int(table["removed"].sum()), int(table["neurons"].sum())
    empty = int((table["removed"] == table["neurons"]).sum())
    unpruned = int((table["removed"] == 0).sum())
    least, most = table["kept_share"].min(), table["kept_share"].max()
    words = f"{removed:,} of {total:,} neurons go ({removed / total:.1%})"
    if least == most:
        low, high = table["kept_saliency"].min(), table["kept_saliency"].max()
        return (
            f"{words}; every expert keeps {least:.0%} of its neurons, and with them {low:.0%} to "
            f"{high:.0%} of its saliency."
        )
    return (
        f"{words}; experts keep {least:.0%} to "
        f"{most:.0%} of theirs: {unpruned} of {len(table)} keep all, {empty} keep none."
    )


def removed_by_tenth(table: pd.DataFrame, *, dark: bool = False) -> go.Figure:
    """Figure of a table of `neuron_cut.COMPARISON_COLUMNS`: neuron sparsity by tenth of experts.

    Tenths are of each layer's experts by whole-expert saliency, lowest first; the dotted line is
    the overall sparsity.
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


def describe_tenths(table: pd.DataFrame) -> str:
    """One sentence: overlap of pruned neurons with pruned experts, agreement of both orders."""
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
    from scipy.stats import spearmanr  # slow to import

    rank = float(spearmanr(table["saliency"], share).statistic)
    return f"{text}; rank correlation of an expert's saliency with the share it keeps: {rank:.2f}."


def most_divided(shares: pd.DataFrame) -> tuple[int, int]:
    """Layer and expert of the first row of `SHARE_COLUMNS` with the kept share nearest to 0.5."""
    row = int((shares["kept_share"] - 0.5).abs().to_numpy().argmin())
    return int(shares["layer"].iloc[row]), int(shares["expert"].iloc[row])


@chart("neuron-saliency", "explore", granularity=NEURON_GRANULARITY)
def draw_saliency(loaded: Loaded) -> Drawing:
    """How salient the neurons of each layer are."""
    field, is_pruned = neuron_cut.field(loaded), neuron_cut.pruned(loaded)
    histogram, cuts = saliency_histogram(field, is_pruned), layer_cuts(field, is_pruned)
    if histogram.empty:
        raise StatsError("No neuron has a saliency above 0, so there is nothing to draw.")
    figure = partial(saliency_by_layer, histogram, cuts)
    return Drawing(figure, histogram, describe_saliency(cuts), neuron_cut.about(loaded))


@chart("neurons-of-expert", "explore", granularity=NEURON_GRANULARITY)
def draw_expert(loaded: Loaded) -> Drawing:
    """The neurons of the expert that is most nearly halved."""
    field, is_pruned = neuron_cut.field(loaded), neuron_cut.pruned(loaded)
    halved = most_divided(expert_shares(field, is_pruned))
    layer, expert = loaded.choices.expert or halved
    table = neurons_of(field, is_pruned, layer, expert)
    about = neuron_cut.about(loaded, f"layer {layer}, expert {expert}")
    # Command lines draw the expert that is most nearly halved.
    name = "" if (layer, expert) == halved else f"neurons-of-expert-{layer}.{expert}"
    return Drawing(partial(neuron_bars, table), table, describe_neurons(table), about, name)


def saliency_by_layer(
    histogram: pd.DataFrame, cuts: pd.DataFrame, *, dark: bool = False
) -> go.Figure:
    """Figure of tables of `HISTOGRAM_COLUMNS` and `CUT_COLUMNS` of `pruning.plan.neuron_cuts`.

    A histogram per layer of the saliency of its neurons, on a logarithmic scale, in shares of the
    layer's neurons; a line across each row is the cut.
    """
    layers = histogram["layer"].unique().tolist()
    bins = len(histogram) // len(layers)
    counts = (histogram["kept"] + histogram["pruned"]).to_numpy().reshape(len(layers), bins)
    pruned_counts = histogram["pruned"].to_numpy().reshape(len(layers), bins)
    middles = np.log10(np.sqrt((histogram["low"] * histogram["high"]).to_numpy())[:bins])
    hover_numbers = np.dstack([counts, pruned_counts, np.repeat(layers, bins).reshape(-1, bins)])
    heatmap = heat(
        as_float32(counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)),
        "share of the layer's neurons",
        dark,
        {"tickformat": ".0%"},
        x=as_float32(middles),
        zmin=None,
        zmax=None,
        hoverongaps=None,
        customdata=hover_numbers.astype(np.int32),
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


def describe_saliency(cuts: pd.DataFrame) -> str:
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

    Beyond MOST_BARS neurons a bar is the mean of consecutive neurons, all kept or all pruned. The
    scale is logarithmic, so 0 has no bar.
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
    groups = table.groupby([table["rank"] // size, table["kept"].to_numpy()], sort=False)
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
        share = float(table.loc[table["kept"], "saliency"].sum()) / total
        text += f" and hold {share:.1%} of the expert's saliency"
    return f"{text}."


def _scopes(loaded: Loaded) -> SideBySide:
    """Layers and FLOPs of every scope; an error if none can be planned."""
    scopes = neuron_cut.scopes(loaded)
    if scopes.layers.empty:
        raise PlanError(next(iter(scopes.refused.values())))
    return scopes


@chart("neuron-layers", "plan", granularity=NEURON_GRANULARITY)
def draw_layers(loaded: Loaded) -> Drawing:
    """What each layer loses of its neurons, by who competes with whom."""
    table = _scopes(loaded).layers
    about = neuron_cut.about(loaded)
    return Drawing(partial(layer_lines, table), table, describe_layers(table), about)


@chart("neuron-flops", "plan", granularity=NEURON_GRANULARITY)
def draw_flops(loaded: Loaded) -> Drawing:
    """What removing neurons saves of a token's computation."""
    table, measured = _scopes(loaded).flops, loaded.scores.routing is not None
    alt, about = describe_flops(table, measured=measured), neuron_cut.about(loaded)
    return Drawing(partial(flops_lines, table, measured=measured), table, alt, about)


def layer_lines(table: pd.DataFrame, *, dark: bool = False) -> go.Figure:
    """Figure of a table `series, layer, share`: sparsity per layer, as HEAPr's Figures 5 and 6."""
    mode = line_mode(table["layer"].nunique())
    lines = [
        series(
            nth_look(place, dark),
            str(name),
            (rows["layer"], rows["share"]),
            _HOVER_LAYER,
            mode=mode,
        )
        for place, (name, rows) in enumerate(table.groupby("series", sort=False))
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

    A line lies above the dotted one if it prunes frequently chosen experts; if routing is unknown
    (`measured` is false), all lie on it.
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
        last = line.sort_values("removed", kind="stable").iloc[-1]
        words.append(f"{name} {last['reduction']:.0%} with {last['removed']:.0%} of neurons gone")
    routing = "by the measured routing" if measured else "if experts are chosen equally often"
    return f"FLOPs of experts saved per token {routing}: {'; '.join(words)}."
