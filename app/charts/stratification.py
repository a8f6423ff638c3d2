"""The expert map of both recipes, and how clearly each separates kept from pruned."""

from collections.abc import Sequence
from fractions import Fraction
from functools import partial
from typing import Any, Final

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from numpy.typing import NDArray
from plotly.colors import hex_to_rgb
from plotly.subplots import make_subplots

from analysis.foreign_text import in_html
from analysis.ranking.overlap import kept_counts
from analysis.ranking.stratification import rescale, separation
from app.charts.chart import Drawing, chart
from app.charts.criterion_looks import looks
from app.charts.theme import CLEAR, apply_theme, muted, paper
from app.charts.traces import Place, halo, heat, layer_axis, pin, series, stroke
from app.loaded import Loaded
from app.tables.ranked import Ranked

_MEASURES: Final = (
    ("gap", "gap at the cut (wider is clearer)"),
    ("band", "experts in the ambiguous band (fewer is clearer)"),
)
_VEIL: Final = 0.3  # light: the order of pruned experts must stay readable


def _rankings(loaded: Loaded) -> list[Ranked]:
    """Rankings of both recipes, the baseline first; one if they have the same name."""
    both = [loaded.ranked(each) for each in (loaded.second, loaded.first)]
    return list({each.criterion.label: each for each in both}.values())


def ranked_experts(panels: Sequence[Ranked], sparsity: Fraction) -> pd.DataFrame:
    """Table `panel, layer, expert, rank, value, kept`: the expert map of each criterion.

    Rank 0 is the first to keep; `value` is the saliency rescaled to 0..1 in its layer.
    """
    tables = []
    for ranked in panels:
        order = ranked.order
        rows, ranks = np.nonzero(order >= 0)
        experts = order[rows, ranks]
        columns = {
            "panel": ranked.criterion.label,
            "layer": np.array([layer.index for layer in ranked.grid.layers])[rows],
            "expert": experts,
            "rank": ranks,
            "value": rescale(ranked.saliency)[rows, experts],
            "kept": ranks < kept_counts(ranked.grid, sparsity)[rows],
        }
        tables.append(pd.DataFrame(columns))
    return pd.concat(tables, ignore_index=True)


def separations(panels: Sequence[Ranked], sparsity: Fraction) -> pd.DataFrame:
    """Table `layer, kept, gap, boundary, band, panel`: how clear each criterion's cut is."""
    tables = [
        separation(ranked.saliency, ranked.grid, kept_counts(ranked.grid, sparsity)).assign(
            panel=ranked.criterion.label
        )
        for ranked in panels
    ]
    return pd.concat(tables, ignore_index=True)


@chart("stratification", "explore")
def draw_map(loaded: Loaded) -> Drawing:
    """Which experts each criterion keeps."""
    table = ranked_experts(_rankings(loaded), loaded.fraction)
    figure = partial(stratification_figure, table, marked=loaded.choices.expert)
    return Drawing(figure, table, describe_map(table), loaded.about_both())


@chart("separation", "explore")
def draw_separation(loaded: Loaded) -> Drawing:
    """How clear the cut is."""
    loaded.check_removes()
    rankings = _rankings(loaded)
    table = separations(rankings, loaded.fraction)
    about = loaded.about(" beside ".join(each.criterion.label for each in rankings))
    return Drawing(partial(separation_figure, table), table, describe(table), about)


def separation_figure(table: pd.DataFrame, *, dark: bool = False) -> go.Figure:
    """Figure of a table `layer, panel, gap, band`: both measures per layer, a dot per panel.

    `gap` is the rescaled saliency of the last kept expert minus that of the first pruned; `band`
    the share of experts within 0.05 of the boundary.
    """
    fig = make_subplots(1, 2, shared_yaxes=True, horizontal_spacing=0.05)
    layers, panels = sorted(table["layer"].unique()), looks(table["panel"].unique(), dark)
    ends = table.groupby("layer")
    for column, (measure, title) in enumerate(_MEASURES, start=1):
        # The bar of each dumbbell; None breaks the line between layers.
        low, high = ends[measure].min(), ends[measure].max()
        x = [value for pair in zip(low, high, strict=True) for value in (*pair, None)]
        y = [value for layer in low.index for value in (str(layer), str(layer), None)]
        fig.add_trace(stroke(x, y, muted(dark), 1.5), row=1, col=column)
        for panel, rows in table.groupby("panel", sort=False):
            dots = series(
                panels[str(panel)],
                str(panel),
                (rows[measure], rows["layer"].astype(str)),
                f"layer %{{y}}, {in_html(str(panel))}: %{{x}}",
                cliponaxis=False,
                legendgroup=panel,
                mode="markers",
                marker={"line": {"color": paper(dark), "width": 1}},
                showlegend=column == 1,
            )
            fig.add_trace(dots, row=1, col=column)
        fig.update_xaxes(title_text=title, row=1, col=column)
    # A label needs 15 px; beyond 30 layers only every second or fourth row is labelled.
    is_short = len(layers) <= 12
    every = 1 if is_short else 2 if len(layers) <= 30 else 4
    apply_theme(
        fig,
        dark,
        x={"rangemode": "tozero"},
        # Rows are categories, so that layers without experts leave no hole.
        y={
            "type": "category",
            "categoryorder": "array",
            "categoryarray": [str(layer) for layer in layers],
            "range": [len(layers) - 0.5, -0.5],
            "tickvals": [str(layer) for layer in layers[::every]],
            "showgrid": is_short,
        },
        height=110 + len(layers) * (22 if is_short else 11),
    )
    fig.update_xaxes(tickformat=".0%", row=1, col=2)
    return fig.update_yaxes(title_text="layer", row=1, col=1)


def stratification_figure(
    table: pd.DataFrame, *, marked: Place | None = None, dark: bool = False
) -> go.Figure:
    """Figure of a table of `ranked_experts`: the expert map to export.

    Rank 1 is on the left; right of the cut is veiled. `marked` is a (layer, expert) to frame.
    """
    names = list(table["panel"].unique())
    layers = sorted(table["layer"].unique())
    fig = make_subplots(
        1,
        len(names),
        shared_yaxes=True,
        horizontal_spacing=0.04,
        subplot_titles=[in_html(str(name)) for name in names],
    )
    pins: list[dict[str, Any]] = []
    for column, name in enumerate(names, start=1):
        rows = table[table["panel"] == name]
        grid = rows.pivot_table(index="layer", columns="rank", values="value").reindex(layers)
        cells = heat(
            grid.to_numpy(np.float32),
            "saliency, rescaled per layer",
            dark,
            {"tickvals": [0, 0.5, 1]},
            x=grid.columns.to_numpy() + 1,
            y=np.arange(len(layers)),
            hovertemplate="rank %{x}: %{z:.3f}<extra></extra>",
        )
        fig.add_trace(cells, row=1, col=column)
        for trace in _cut(rows, layers, dark):
            fig.add_trace(trace, row=1, col=column)
        if marked is not None:
            marked_rows = rows[(rows["layer"] == marked[0]) & (rows["expert"] == marked[1])]
            for rank in marked_rows["rank"]:
                pins += pin(
                    rank + 1, layers.index(marked[0]), dark, "" if column == 1 else str(column)
                )
    fig.update_annotations(font={"size": 14})
    width = int(table["rank"].max()) + 1
    step = next((step for step in (1, 2, 4, 8, 16, 32, 64, 128) if width / step <= 5), 256)
    apply_theme(
        fig,
        dark,
        x={
            "title": "rank (1 = first to keep)",
            "range": [0.5, width + 0.5],
            "showgrid": False,
            "tickvals": sorted({1, *range(step, width + 1, step)}),
        },
        y=layer_axis(layers),
        shapes=pins,
        height=int(np.clip(len(layers) * 28, 170, 420)) + 90,
    )
    return fig.update_yaxes(title_text="layer", row=1, col=1)


def describe(table: pd.DataFrame) -> str:
    """One sentence on a table of `separation_figure`: panels by how clearly they separate."""
    cut = table.dropna(subset=["gap", "band"])
    if cut.empty:
        return "No layer has a cut to judge: nothing is pruned."
    means = cut.groupby("panel", sort=False)[["gap", "band"]].mean().sort_values("band")
    readings = [
        f"{panel} leaves {row['band']:.0%} of the experts (gap {row['gap']:.3f})"
        for panel, row in means.iterrows()
    ]
    return "In the ambiguous band, mean over layers: " + ", ".join(readings) + "."


def describe_map(table: pd.DataFrame) -> str:
    """One sentence on a table of `ranked_experts`: experts kept, agreement of the criteria."""
    kept = {
        str(name): set(zip(rows["layer"], rows["expert"], strict=True))
        for name, rows in table[table["kept"]].groupby("panel", sort=False)
    }
    (first, pairs), *others = kept.items()
    total = int((table["panel"] == first).sum())
    text = f"{first} keeps {len(pairs)} of {total} experts"
    for other, other_pairs in others:
        shared = len(pairs & other_pairs) / max(len(pairs), 1)
        text += f"; {other} keeps {shared:.0%} of the same"
    return text + "."


def _cut(rows: pd.DataFrame, layers: list[int], dark: bool) -> list[go.Scatter]:
    """A light veil right of the cut, and the cut itself; nothing if nothing is pruned."""
    counts = rows.groupby("layer")["kept"].agg(["sum", "size"]).reindex(layers)
    kept, sizes = counts["sum"].to_numpy(), counts["size"].to_numpy()
    if (kept == sizes).all():
        return []
    cut, end = _staircase(kept), _staircase(sizes)
    x, y = (np.concatenate([here, there[::-1]]) for here, there in zip(cut, end, strict=True))
    red, green, blue = hex_to_rgb(paper(dark))
    veil = stroke(x, y, CLEAR, 0, fill="toself", fillcolor=f"rgba({red},{green},{blue},{_VEIL})")
    return [veil, *(stroke(*cut, *look) for look in halo(dark))]


def _staircase(counts: NDArray[np.integer]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The line at the right edge of the first `counts` cells of each row."""
    edges = np.arange(len(counts) + 1) - 0.5
    return np.repeat(counts + 0.5, 2), np.repeat(edges, 2)[1:-1]
