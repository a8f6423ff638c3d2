"""Overlap of the pruned sets between calibration corpora, as a matrix."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from analysis.foreign_text import in_html
from analysis.numbers.arrays import FloatArray
from analysis.ranking import overlap as overlaps
from app.charts import neuron_cut
from app.charts.chart import Drawing, chart, of_corpora
from app.charts.theme import chance_color, chance_scale, ink, text_on, themed
from app.charts.traces import ABOVE_CHANCE, annotation, heat, targets
from pruning.plan.plan import NEURON_GRANULARITY

if TYPE_CHECKING:
    from app.loaded import Loaded


def pair_overlaps(loaded: Loaded) -> pd.DataFrame:
    """Table of `criterion_overlap` of the pairs of corpora."""
    return loaded.study.cached(
        overlaps.criterion_overlap,
        loaded.routed_criterion(),
        loaded.calibrated,
        loaded.choices.gate,
        loaded.fraction,
    )


@chart("overlap", "explore")
def draw(loaded: Loaded) -> Drawing:
    """What two corpora agree on."""
    label, corpora = loaded.routed_criterion().label, list(loaded.corpora_stats)
    about = of_corpora(loaded, label, f"gate {loaded.choices.gate}")
    return matrix_drawing(pair_overlaps(loaded), corpora, about)


def matrix_drawing(pairs: pd.DataFrame, corpora: Sequence[str], about: str) -> Drawing:
    """The matrix of a table `corpus_a, corpus_b, overlap, chance` of corpus pairs."""
    table = overlaps.symmetric_overlaps(pairs, list(corpora))
    by_chance = float(pairs["chance"].mean())
    figure = partial(overlap_heatmap, table, chance=by_chance)
    return Drawing(figure, pairs, describe(table, chance=by_chance), about)


@chart("neuron-overlap", "explore", granularity=NEURON_GRANULARITY)
def draw_neuron_overlap(loaded: Loaded) -> Drawing:
    """What two corpora agree on of the neurons that go."""
    corpora, pairs = neuron_cut.measured_corpora(loaded), neuron_cut.corpora_overlaps(loaded)
    return matrix_drawing(pairs, corpora, neuron_cut.about(loaded))


def overlap_heatmap(table: pd.DataFrame, *, chance: float, dark: bool = False) -> go.Figure:
    """Figure of a table `corpus_a, corpus_b, overlap`, a row per pair in either order.

    A pair without a row, or with NaN, is shown as no data. `chance` is the overlap of two random
    sets; colours show `beside_chance`.
    """
    names, matrix = _matrix(table)
    corpora, shares = [in_html(name) for name in names], overlaps.beside_chance(matrix, chance)
    corner = {"xref": "paper", "xanchor": "left", "yref": "paper", "yanchor": "bottom"}
    text = f"chance: {chance:.2f}; orange: below it"
    key = annotation(0, 1, text, **corner, yshift=6, font={"color": ink(dark)})
    cells = heat(
        shares,
        "overlap above chance",
        dark,
        ABOVE_CHANCE,
        zmin=-1,
        colorscale=chance_scale(dark),
        x=corpora,
        y=corpora,
        showscale=False,  # the cells show their numbers
        xgap=2,
        ygap=2,
        hoverinfo="skip",
    )
    places = list(np.ndindex(matrix.shape))
    marks = targets(
        [corpora[column] for _, column in places],
        [corpora[row] for row, _ in places],
        [[row, column, float(matrix[row, column])] for row, column in places],
        10,
        hovertemplate="%{y} and %{x}: %{customdata[2]:.3f}, "
        f"by chance {chance:.3f}<extra></extra>",
    )
    # Categories, because names of corpora may look like numbers or dates.
    axis = {"type": "category", "showgrid": False, "fixedrange": True}
    return themed(
        [cells, marks],
        dark,
        x=axis,
        y=axis | {"autorange": "reversed"},
        annotations=[*_numbers(corpora, matrix, shares, dark), key],
        # Any click goes to the nearest cell's marker.
        hovermode="closest",
        hoverdistance=-1,
        height=max(220, 90 + 46 * len(corpora)),
        margin={"t": 26},
    )


def _matrix(table: pd.DataFrame) -> tuple[list[str], FloatArray]:
    """The corpora, and their overlaps (corpora, corpora): 1 with themselves, NaN without a row."""
    names = [str(name) for name in dict.fromkeys([*table["corpus_a"], *table["corpus_b"]])]
    matrix = np.full((len(names), len(names)), np.nan)
    for first, second, overlap in table[["corpus_a", "corpus_b", "overlap"]].to_numpy():
        row, column = names.index(str(first)), names.index(str(second))
        matrix[row, column] = matrix[column, row] = overlap
    np.fill_diagonal(matrix, 1.0)
    return names, matrix


def _numbers(
    corpora: Sequence[str], matrix: FloatArray, shares: FloatArray, dark: bool
) -> list[dict[str, Any]]:
    """The number in each cell; `shares` are those of its colour."""
    return [
        annotation(
            corpora[column],
            corpora[row],
            "no data" if math.isnan(overlap) else f"{overlap:.2f}",
            font={"size": 14, "color": _number_color(float(shares[row, column]), dark)},
        )
        for (row, column), overlap in np.ndenumerate(matrix)
    ]


def clicked_pair(event: object, corpora: Sequence[str]) -> tuple[str, str] | None:
    """The two corpora of a cell selected in the matrix; None for none, or for the diagonal."""
    match event:
        case {"selection": {"points": [{"customdata": [a, b, *_]}, *_]}} if a != b:
            known = dict(enumerate(corpora))
            return (known[a], known[b]) if {a, b} <= known.keys() else None
    return None


def _number_color(share: float, dark: bool) -> str:
    return ink(dark) if math.isnan(share) else text_on(chance_color(share, dark))


def describe(table: pd.DataFrame, *, chance: float) -> str:
    """One sentence: the range over pairs of corpora, and chance."""
    pairs = table[table["corpus_a"] != table["corpus_b"]].dropna(subset=["overlap"])
    if pairs.empty:
        return "No two corpora have an overlap to compare."
    lowest = pairs.sort_values("overlap", kind="stable").iloc[0]
    against = f"; two random sets would share {chance:.0%}"
    if len(pairs) == 1:
        return (
            f"The sets pruned on {lowest['corpus_a']} and {lowest['corpus_b']} share "
            f"{lowest['overlap']:.0%}{against}."
        )
    return (
        f"The pruned sets share {pairs['overlap'].min():.0%} to {pairs['overlap'].max():.0%} over "
        f"pairs of corpora, least between {lowest['corpus_a']} and {lowest['corpus_b']}{against}."
    )
