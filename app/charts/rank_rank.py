"""Rank under one recipe against rank under the other, over all layers, binned."""

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from numpy.typing import NDArray

from analysis.foreign_text import in_html
from app.charts.chart import Drawing, chart
from app.charts.context import Context
from app.charts.theme import CIVIDIS, colorbar, colorscale, ink, paper, themed
from app.charts.traces import Names, Place, annotation, as_float32, halo, pin_point, targets


@chart("rank-rank", "compare")
def draw(context: Context) -> Drawing:
    """How far the two orders agree."""
    table, names = context.comparison.table(), context.names
    alt = describe(table, context.comparison.kendall_tau)
    figure = partial(rank_rank, table, names, marked=context.expert)
    return Drawing(figure, table, alt, context.about_both())


def rank_rank(
    table: pd.DataFrame, names: Names, *, marked: Place | None = None, dark: bool = False
) -> go.Figure:
    """Figure of a table `layer, expert, kept_by, rank_a, rank_b`: experts per cell of both ranks.

    Both axes are the rank as a share of the layer's experts; the first to keep is at the top left.
    Cells count experts, because thousands of points would hide how many coincide.
    """
    rows, columns, bins = _places(table)
    counts = np.zeros((bins, bins), dtype=np.float32)
    np.add.at(counts, (rows, columns), 1)
    counts = np.where(counts > 0, counts, np.float32("nan"))
    middles = (np.arange(bins) + 0.5) / bins
    cells = go.Heatmap(
        x=middles,
        y=middles,
        z=counts,
        zmin=0,
        colorscale=colorscale(CIVIDIS if dark else CIVIDIS[::-1]),
        colorbar=colorbar("experts", dark),
        hoverongaps=False,
        hovertemplate="A %{x:.0%}, B %{y:.0%}: %{z} experts<extra></extra>",
    )
    rows, columns = np.nonzero(counts > 0)
    brush = targets(
        as_float32(middles[columns]),
        as_float32(middles[rows]),
        # One number per cell: for several the browser would return a typed array, not a list.
        (rows * bins + columns).astype(np.uint16),
        10,
        hoverinfo="skip",
    )
    traces = [cells, brush]
    if marked is not None:
        is_it = (table["layer"] == marked[0]) & (table["expert"] == marked[1])
        size = int((table["layer"] == marked[0]).sum())
        ends = ((table.loc[is_it, rank] + 0.5) / size for rank in ("rank_a", "rank_b"))
        traces.append(pin_point(ends, marked, dark))
    a, b = (f"rank in {side}: {in_html(name)}" for side, name in zip("AB", names, strict=True))
    fates = table["kept_by"]
    cut_a, cut_b = (float(fates.isin(("both", f"only {side}")).mean()) for side in "AB")
    fig = themed(
        traces,
        dark,
        x={"title": a, "tickformat": ".0%", "showgrid": False, "range": [0, 1]},
        y={"title": b, "tickformat": ".0%", "showgrid": False, "range": [1, 0]},
        height=400,
        dragmode="select",
        hovermode="closest",
    )
    for color, width in halo(dark):
        fig.add_vline(x=cut_a, line={"color": color, "width": width})
        fig.add_hline(y=cut_b, line={"color": color, "width": width})
    diagonal = {"color": ink(dark), "width": 1, "dash": "dot"}
    fig.add_shape(type="line", x0=0, y0=0, x1=1, y1=1, line=diagonal)
    fig.layout.annotations = [*_quadrants(fates, cut_a, dark)]
    return fig


def _quadrants(fates: "pd.Series[str]", cut_a: float, dark: bool) -> Iterator[dict[str, Any]]:
    """The number of experts in each quadrant, away from the diagonal."""
    look = {"bgcolor": paper(dark), "bordercolor": ink(dark), "borderpad": 2, "opacity": 0.92}
    above = {"xanchor": "right", "yanchor": "top", "xshift": -5, "yshift": -4}
    below = {"xanchor": "left", "yanchor": "bottom", "xshift": 5, "yshift": 4}
    for fate, x, side in (
        ("both", cut_a, above),
        ("only A", 0, below),
        ("only B", 1, above),
        ("neither", cut_a, below),
    ):
        text = f"{fate}: {int((fates == fate).sum()):,}"
        y = 1 if side is above else 0
        yield annotation(x, y, text, yref="paper", **side, **look)


def describe(table: pd.DataFrame, tau: float) -> str:
    """One sentence: how far the two orders agree."""
    word = "alike" if tau > 0.6 else "somewhat alike" if tau > 0.2 else "unlike"
    order = "cannot be compared" if np.isnan(tau) else f"are {word} (Kendall tau {tau:.2f})"
    alike = table["kept_by"].isin(("both", "neither")).mean()
    return f"The two orders {order}; both recipes decide alike on {alike:.0%} of the experts."


def brushed_rows(table: pd.DataFrame, event: object) -> pd.DataFrame | None:
    """The rows in the brushed region of the figure, or None."""
    try:
        points = event["selection"]["points"]  # type: ignore[index]
        # The ring around the pinned expert has no number.
        numbers = [point.get("customdata") for point in points]
        cells = {int(number) for number in numbers if number is not None}
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
    rows, columns, bins = _places(table)
    return table[np.isin(rows * bins + columns, sorted(cells))] if cells else None


def _places(table: pd.DataFrame) -> tuple[NDArray[np.integer], NDArray[np.integer], int]:
    """Row (rank in B) and column (rank in A) of each expert's cell, and the number of bins."""
    sizes = table.groupby("layer")["layer"].transform("size").to_numpy()
    # A power of two with about one or more experts per cell.
    most = max(2, min(32, int(sizes.max()), math.isqrt(len(table))))
    bins = 1 << (most.bit_length() - 1)
    columns, rows = (table[rank].to_numpy() * bins // sizes for rank in ("rank_a", "rank_b"))
    return rows, columns, bins
