"""Overlap of the pruned sets between calibration texts, as a matrix."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from numpy.typing import NDArray

from analysis.ranking import overlap as overlaps
from app.charts.chart import Chart, Drawing
from app.charts.context import Context
from app.charts.theme import (
    color_at,
    colorbar,
    colorscale,
    ink,
    muted,
    plain,
    text_on,
    themed,
)


def pair_overlaps(context: Context) -> pd.DataFrame:
    """Table of `criterion_overlap` of the pairs of corpora."""
    return context.keep(
        overlaps.criterion_overlap,
        context.routed_criterion(),
        context.calibrated,
        context.gate,
        context.fraction,
    )


def _draw(context: Context) -> Drawing:
    label, corpora = context.routed_criterion().label, list(context.corpora_stats)
    about = context.about(label, f"gate {context.gate}")
    return matrix_drawing("overlap", pair_overlaps(context), corpora, about)


def matrix_drawing(name: str, pairs: pd.DataFrame, corpora: Sequence[str], about: str) -> Drawing:
    """The matrix of a table `corpus_a, corpus_b, overlap, chance` of pairs of corpora."""
    table, chance = overlaps.overlap_matrix(pairs, list(corpora)), float(pairs["chance"].mean())
    return Drawing(
        name,
        lambda dark: overlap_matrix(table, chance=chance, dark=dark),
        pairs,
        describe(table, chance=chance),
        about,
    )


OVERLAP = Chart("overlap", "explore", "What two texts agree on", _draw)


def overlap_matrix(
    table: pd.DataFrame, *, chance: float | None = None, dark: bool = False
) -> go.Figure:
    """Figure of a table `corpus_a, corpus_b, overlap`, one row a pair, in either order.

    The diagonal is 1 by definition; a pair without a row, or with NaN, is shown as no data.
    `chance` is the overlap that two random sets would have.
    """
    names, matrix = _square(table)
    corpora = [plain(name) for name in names]
    numbers = [
        _number(second, first, float(matrix[row, column]), dark)
        for row, first in enumerate(corpora)
        for column, second in enumerate(corpora)
    ]
    # Corpora are names, also those that read like numbers or dates.
    names_axis = {"type": "category", "showgrid": False, "fixedrange": True}
    layout = {
        "annotations": [*numbers, *([] if chance is None else [_chance(chance, dark)])],
        "height": max(220, 90 + 46 * len(corpora)),
        "margin": {"t": 30},
        "xaxis": names_axis,
        "yaxis": names_axis | {"autorange": "reversed"},
    }
    return themed([_cells(corpora, matrix, dark)], layout, dark)


def describe(table: pd.DataFrame, *, chance: float | None = None) -> str:
    """One sentence: the range over pairs of different texts, against chance."""
    pairs = table[table["corpus_a"] != table["corpus_b"]].dropna(subset=["overlap"])
    if pairs.empty:
        return "No two texts have an overlap to compare."
    lowest = pairs.sort_values("overlap").iloc[0]
    against = "" if chance is None else f"; two random sets would share {chance:.0%}"
    if len(pairs) == 1:
        return (
            f"The sets pruned on {lowest['corpus_a']} and {lowest['corpus_b']} share "
            f"{lowest['overlap']:.0%}{against}."
        )
    return (
        f"The pruned sets share {pairs['overlap'].min():.0%} to {pairs['overlap'].max():.0%} over "
        f"pairs of texts, least between {lowest['corpus_a']} and {lowest['corpus_b']}{against}."
    )


def _square(table: pd.DataFrame) -> tuple[list[str], NDArray[np.float64]]:
    """The corpora in order of appearance, and the symmetric matrix of their overlaps."""
    names = [str(name) for name in dict.fromkeys([*table["corpus_a"], *table["corpus_b"]])]
    matrix = np.full((len(names), len(names)), np.nan)
    pairs = zip(table["corpus_a"], table["corpus_b"], table["overlap"], strict=True)
    for first, second, overlap in pairs:
        row, column = names.index(str(first)), names.index(str(second))
        matrix[row, column] = matrix[column, row] = overlap
    np.fill_diagonal(matrix, 1.0)
    return names, matrix


def _number(x: str, y: str, overlap: float, dark: bool) -> dict[str, Any]:
    is_known = not math.isnan(overlap)
    return {
        "x": x,
        "y": y,
        "text": f"{overlap:.2f}" if is_known else "no data",
        "font": {"size": 14, "color": text_on(color_at(overlap)) if is_known else muted(dark)},
        "showarrow": False,
    }


def _chance(chance: float, dark: bool) -> dict[str, Any]:
    return {
        "x": 0,
        "xref": "paper",
        "xanchor": "left",
        "y": 1,
        "yref": "paper",
        "yanchor": "bottom",
        "yshift": 6,
        "text": f"two random sets: {chance:.2f}",
        "font": {"color": ink(dark)},
        "showarrow": False,
    }


def _cells(corpora: list[str], matrix: NDArray[np.float64], dark: bool) -> dict[str, Any]:
    return {
        "type": "heatmap",
        "x": corpora,
        "y": corpora,
        "z": matrix,
        "zmin": 0,
        "zmax": 1,
        "colorscale": colorscale(),
        "colorbar": colorbar("overlap", dark, tickvals=[0, 0.5, 1]),
        "xgap": 2,
        "ygap": 2,
        "hoverongaps": False,
        "hovertemplate": "%{y} and %{x}: %{z:.3f}<extra></extra>",
    }
