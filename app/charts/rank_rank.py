"""Rank under one recipe against rank under the other, all layers in one: binned, with quadrants."""

import math
from typing import Final

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from numpy.typing import NDArray

from app.charts.chart import Chart, Drawing
from app.charts.comparing import names_of
from app.charts.context import Context
from app.charts.theme import CIVIDIS, apply_theme, colorbar, colorscale, ink, paper, plain

_BINS: Final = 32


def _draw(context: Context) -> Drawing:
    table, names = context.comparison.table(), names_of(context)
    return Drawing(
        "rank-rank",
        lambda dark: rank_rank(table, names, dark=dark),
        table,
        describe(table, context.comparison.kendall_tau),
        context.about_both(),
    )


RANK_RANK = Chart("rank-rank", "compare", "How far the two orders agree", _draw)


def rank_rank(
    table: pd.DataFrame, names: tuple[str, str] = ("A", "B"), *, dark: bool = False
) -> go.Figure:
    """Figure of a table `layer, kept_by, rank_a, rank_b`, rank 0 first to keep.

    Both axes are the rank as a share of its layer's experts, so that layers of unlike size fit on
    one; the first to keep is at the top left. Cells count experts: a point for each of thousands
    would hide how many lie on one place.
    """
    sizes = table.groupby("layer")["layer"].transform("size").to_numpy()
    bins = _num_bins(len(table), int(sizes.max()))
    counts = _counts(table, sizes, bins)
    middles = (np.arange(bins) + 0.5) / bins
    fig = go.Figure(
        go.Heatmap(
            x=middles,
            y=middles,
            z=counts,
            zmin=0,
            colorscale=colorscale(CIVIDIS if dark else CIVIDIS[::-1]),
            colorbar=colorbar("experts", dark),
            hoverongaps=False,
            hovertemplate="A %{x:.0%}, B %{y:.0%}: %{z} experts<extra></extra>",
        )
    )
    fig.add_trace(_targets(counts, middles))
    cut_a, cut_b = (_kept_share(table, f"only {side}") for side in "AB")
    for color, width in ((paper(dark), 5), (ink(dark), 2)):
        fig.add_vline(x=cut_a, line={"color": color, "width": width})
        fig.add_hline(y=cut_b, line={"color": color, "width": width})
    fig.add_shape(
        type="line", x0=0, y0=0, x1=1, y1=1, line={"color": ink(dark), "width": 1, "dash": "dot"}
    )
    apply_theme(fig, dark)
    fig.update_layout(height=400, margin={"t": 24}, dragmode="select", hovermode="closest")
    for axis, update in (("A", fig.update_xaxes), ("B", fig.update_yaxes)):
        name = plain(names["AB".index(axis)])
        update(title_text=f"rank in {axis}: {name}", tickformat=".0%", showgrid=False)
    fig.update_xaxes(range=[0, 1])
    fig.update_yaxes(range=[1, 0])
    return _count_quadrants(fig, table, cut_a, dark)


def describe(table: pd.DataFrame, tau: float) -> str:
    """One sentence: how far the two orders agree."""
    word = "alike" if tau > 0.6 else "somewhat alike" if tau > 0.2 else "unlike"
    order = "cannot be compared" if np.isnan(tau) else f"are {word} (Kendall tau {tau:.2f})"
    alike = table["kept_by"].isin(("both", "neither")).mean()
    return f"The two orders {order}; both recipes decide alike on {alike:.0%} of the experts."


def brushed(table: pd.DataFrame, event: object) -> pd.DataFrame | None:
    """The rows in the region that was brushed; None where none was.

    Args:
        table: what the figure was drawn of.
        event: what `st.plotly_chart` returned, or its entry in session state.
    """
    cells = _brushed_cells(event)
    if not cells:
        return None
    sizes = table.groupby("layer")["layer"].transform("size").to_numpy()
    bins = _num_bins(len(table), int(sizes.max()))
    rows, columns = _places(table, sizes, bins)
    return table[np.isin(rows * bins + columns, sorted(cells))]


def _brushed_cells(event: object) -> set[int]:
    """Numbers of the brushed cells, as `_targets` gives them."""
    try:
        points = event["selection"]["points"]  # type: ignore[index]
        return {int(point["customdata"]) for point in points}
    except (KeyError, TypeError, ValueError):
        return set()


def _targets(counts: NDArray[np.float32], middles: NDArray[np.float64]) -> go.Scatter:
    rows, columns = np.nonzero(counts > 0)
    invisible = {"marker": {"opacity": 0}}
    return go.Scatter(
        x=middles[columns].astype(np.float32),
        y=middles[rows].astype(np.float32),
        # One number a cell: of several the browser would send back a typed array, no list.
        customdata=(rows * len(middles) + columns).astype(np.uint16),
        mode="markers",
        marker={"symbol": "square", "size": 10, "opacity": 0},
        selected=invisible,
        unselected=invisible,
        showlegend=False,
        hoverinfo="skip",
    )


def _places(
    table: pd.DataFrame, sizes: NDArray[np.integer], bins: int
) -> tuple[NDArray[np.integer], NDArray[np.integer]]:
    """Row (rank in B) and column (rank in A) of the cell of each expert."""
    columns, rows = (table[rank].to_numpy() * bins // sizes for rank in ("rank_a", "rank_b"))
    return rows, columns


def _counts(table: pd.DataFrame, sizes: NDArray[np.integer], bins: int) -> NDArray[np.float32]:
    rows, columns = _places(table, sizes, bins)
    counts = np.zeros((bins, bins), dtype=np.float32)
    np.add.at(counts, (rows, columns), 1)
    return np.where(counts > 0, counts, np.float32("nan"))


def _kept_share(table: pd.DataFrame, alone: str) -> float:
    return float(table["kept_by"].isin(("both", alone)).mean())


def _num_bins(num_experts: int, largest_layer: int) -> int:
    """A power of two that leaves about one expert or more for each cell."""
    most = max(2, min(_BINS, largest_layer, math.isqrt(num_experts)))
    return 1 << (most.bit_length() - 1)


def _count_quadrants(fig: go.Figure, table: pd.DataFrame, cut: float, dark: bool) -> go.Figure:
    """The number of experts in each quadrant, in the corner that is off the diagonal."""
    counts = table["kept_by"].value_counts()
    places = (
        ("both", cut, "right", 0),
        ("only A", 0, "left", 1),
        ("only B", 1, "right", 0),
        ("neither", cut, "left", 1),
    )
    for fate, x, anchor, bottom in places:
        fig.add_annotation(
            x=x,
            y=1 - bottom,
            yref="paper",
            xanchor=anchor,
            yanchor="bottom" if bottom else "top",
            xshift=-5 if anchor == "right" else 5,
            yshift=4 if bottom else -4,
            text=f"{fate}: {int(counts.get(fate, 0)):,}",
            bgcolor=paper(dark),
            bordercolor=ink(dark),
            borderpad=2,
            opacity=0.92,
            showarrow=False,
        )
    return fig
