"""Overlap map: the 18 variants of S(b, alpha, beta), coloured by overlap between corpora."""

import math
from collections.abc import Mapping
from functools import partial
from itertools import product
from typing import Any, Final

import pandas as pd
import plotly.graph_objects as go

from analysis.ranking.overlap import mean_overlaps, variant_overlaps
from app.charts.chart import Drawing, chart
from app.charts.context import Context
from app.charts.theme import CLEAR, color_at, ink, muted, paper, text_on, themed
from app.charts.traces import around, box, halo, heat, note, stroke, targets

Variant = tuple[int, int, int]

VARIANT_NAMES: Final[dict[Variant, str]] = {
    (0, 0, 0): "Frequency",
    (0, 1, 0): "SEER",
    (0, 0, 1): "EAN",
    (1, 1, 1): "REAP",
    (1, 0, 1): "MAN",
    (1, 0, 2): "MSAN",
    (0, 1, 1): "Gate-EAN",
    (0, 2, 2): "Sq. gate energy",
}
DEGENERATE: Final[Variant] = (1, 0, 0)

EXPONENTS: Final = (0, 1, 2)
_BLOCK_STEP: Final = 3.25  # the two values of b stand apart by a quarter of a cell


@chart("overlap-map", "explore")
def draw(context: Context) -> Drawing:
    """Which variants depend on the corpus."""
    stats, selected = context.corpora_stats, context.ranking_criterion.exponents
    means = mean_overlaps(context.keep(variant_overlaps, stats, context.gate, context.fraction))
    about = context.about(f"gate {context.gate}")
    return Drawing(partial(variant_map, means, selected=selected), means, describe(means), about)


def variant_map(
    table: pd.DataFrame, *, selected: Variant | None = None, dark: bool = False
) -> go.Figure:
    """Figure of a table `b, alpha, beta, overlap`: 3 rows (alpha) x 6 columns (b, beta).

    `overlap` is the mean over pairs of corpora, 0..1. (1, 0, 0) scores every expert alike: it may
    be absent and is shown hatched. Each cell carries an invisible marker, because Streamlit
    selects points and not cells; its customdata is [b, alpha, beta].
    """
    overlaps = overlaps_of(table)
    x, y = _place(DEGENERATE)
    hatch = stroke(*around(x, y), CLEAR, 0, fill="toself", fillcolor=CLEAR)
    hatch.fillpattern = {"shape": "/", "fgcolor": muted(dark), "fgopacity": 0.6, "size": 7}
    places = [_place(variant) for variant in overlaps]
    marks = targets(
        [x for x, _ in places],
        [y for _, y in places],
        [list(variant) for variant in overlaps],
        30,
        text=[reading(*each) for each in overlaps.items()],
        hovertemplate="%{text}<extra></extra>",
    )
    edges = []
    if selected is not None:
        x, y = _place(selected)
        ends = (x - 0.5, x + 0.5), (y - 0.5, y + 0.5)
        edges = [box(*ends, color, width) for color, width in halo(dark, 3)]
    common = {"showgrid": False, "fixedrange": True}
    above = {"yref": "paper", "yanchor": "bottom", "yshift": 4}
    heads = ("b = 0, sum over routed tokens", "b = 1, mean over routed tokens")
    return themed(
        [*(_cells(overlaps, b, dark) for b in (0, 1)), hatch, marks],
        dark,
        x=common
        | {
            "tickvals": [b * _BLOCK_STEP + beta for b in (0, 1) for beta in EXPONENTS],
            "ticktext": [f"\u03b2 = {beta}" for _ in (0, 1) for beta in EXPONENTS],
            "range": [-0.56, _BLOCK_STEP + 2.56],
        },
        y=common
        | {
            "tickvals": list(EXPONENTS),
            "ticktext": [f"\u03b1 = {alpha}" for alpha in EXPONENTS],
            "range": [2.56, -0.56],
        },
        annotations=[
            *(_words(variant, overlap, dark) for variant, overlap in overlaps.items()),
            *(note(b * _BLOCK_STEP + 1, 1, head, **above) for b, head in enumerate(heads)),
        ],
        shapes=edges,
        # Any click goes to the nearest cell's marker, however large the cell is drawn.
        hovermode="closest",
        hoverdistance=-1,
        height=280,
        margin={"t": 30},
    )


def clicked_point(event: object, size: int) -> tuple[Variant, list[int]] | None:
    """The variant in a selection of `st.plotly_chart`, and what else is in its cell's numbers.

    `event` is what the widget returned, or its entry in session state; None if it has no variant.
    """
    try:
        point = event["selection"]["points"][-1]["customdata"]  # type: ignore[index]
        b, alpha, beta, *more = (int(point[place]) for place in range(size))
    except (KeyError, IndexError, TypeError, ValueError):
        return None
    is_whole = len(point) == size and b in (0, 1) and alpha in EXPONENTS and beta in EXPONENTS
    return ((b, alpha, beta), more) if is_whole else None


def clicked_variant(event: object) -> Variant | None:
    """The variant in the selection of `st.plotly_chart(on_select=...)`; None if nothing valid."""
    found = clicked_point(event, 3)
    return found and found[0]


def describe(table: pd.DataFrame) -> str:
    """One sentence: which variant depends least on the corpus, and which most."""
    found = {variant: overlap for variant, overlap in overlaps_of(table).items() if overlap >= 0}
    if not found:
        return "No overlap between corpora is known for any variant."
    best = max(found, key=lambda variant: found[variant])
    worst = min(found, key=lambda variant: found[variant])
    return (
        f"Of {len(found)} variants, {variant_label(best)} depends least on the calibration corpus "
        f"(overlap {found[best]:.2f}) and {variant_label(worst)} most ({found[worst]:.2f})."
    )


def overlaps_of(table: pd.DataFrame) -> dict[Variant, float]:
    """The overlap of each variant in a table `b, alpha, beta, overlap`; NaN where none is known."""
    known = table.set_index(["b", "alpha", "beta"])["overlap"]
    # A constant score ranks nothing; ties broken by id would fake a perfect overlap.
    return {
        variant: math.nan if variant == DEGENERATE else float(known.get(variant, math.nan))
        for variant in product((0, 1), EXPONENTS, EXPONENTS)
    }


def variant_label(variant: Variant) -> str:
    """The name of a variant, if it has one, and its exponents."""
    text = "({}, {}, {})".format(*variant)
    return f"{VARIANT_NAMES[variant]} {text}" if variant in VARIANT_NAMES else text


def _place(variant: Variant) -> tuple[float, int]:
    b, alpha, beta = variant
    return b * _BLOCK_STEP + beta, alpha


def _cells(overlaps: Mapping[Variant, float], b: int, dark: bool) -> go.Heatmap:
    return heat(
        [[overlaps[b, alpha, beta] for beta in EXPONENTS] for alpha in EXPONENTS],
        "overlap",
        dark,
        {"tickvals": [0, 0.5, 1]},
        x=[b * _BLOCK_STEP + beta for beta in EXPONENTS],
        y=list(EXPONENTS),
        showscale=b == 1,
        xgap=2,
        ygap=2,
        hoverinfo="skip",
    )


def reading(variant: Variant, overlap: float) -> str:
    """What is said of the cell of a variant that is pointed at."""
    said = "no data" if math.isnan(overlap) else f"overlap {overlap:.3f}"
    if variant == DEGENERATE:
        said = "the same score for every expert: nothing to rank"
    return f"{variant_label(variant)}<br>{said}"


def _words(variant: Variant, overlap: float, dark: bool) -> dict[str, Any]:
    x, y = _place(variant)
    is_known = not math.isnan(overlap)
    color = text_on(color_at(overlap)) if is_known else ink(dark)
    number = f"{overlap:.2f}" if is_known else "N/A" if variant == DEGENERATE else "no data"
    name = "constant" if variant == DEGENERATE else VARIANT_NAMES.get(variant, "")
    # The longest name is wider than a cell; broken before its last word it fits.
    parts = name.rsplit(" ", 1)
    lines = [number, *(f"<span style='font-size:11px'>{part}</span>" for part in parts)]
    return note(
        x,
        y,
        "<br>".join(lines) if name else number,
        font={"color": color, "size": 14},
        # Without its own ground the text would be crossed by the hatch.
        bgcolor=paper(dark) if variant == DEGENERATE else None,
    )
