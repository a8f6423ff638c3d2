"""The 18 variants of S(b, alpha, beta) as one map: by overlap of the corpora, or by loss."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from analysis.ranking.overlap import above_chance, too_near, variant_means
from app.charts.chart import Drawing, chart, of_corpora
from app.charts.theme import CLEAR, color_at, ink, muted, paper, text_on, themed
from app.charts.traces import annotation, around, box, halo, heat, stroke, targets
from app.choices import CONSTANT

if TYPE_CHECKING:
    from app.loaded import Loaded

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

EXPONENTS: Final = (0, 1, 2)
_BLOCK_STEP: Final = 3.6  # gap between the two values of b, with the label of the second


@chart("overlap-map", "explore")
def draw(loaded: Loaded) -> Drawing:
    """Which variants depend on the corpus."""
    stats, selected = loaded.corpora_stats, loaded.choices.ranking_criterion.exponents
    means = loaded.study.cached(variant_means, stats, loaded.choices.gate, loaded.fraction)
    about = of_corpora(loaded, f"gate {loaded.choices.gate}")
    alt = describe(means, loaded.removed_at(loaded.fraction))
    return Drawing(partial(variant_map, means, selected=selected), means, alt, about)


def variant_map(
    table: pd.DataFrame, *, selected: Variant | None = None, dark: bool = False
) -> go.Figure:
    """Figure of a table `b, alpha, beta, overlap, chance`; see `variant_grid`.

    `overlap` is the mean over pairs of corpora, 0..1, `chance` that of random sets; colours show
    `above_chance`.
    """
    overlaps, by_chance = overlaps_of(table), float(table["chance"].mean())
    cells = {
        variant: Cell(
            float(above_chance(np.array(overlap), by_chance)),
            "" if math.isnan(overlap) else f"{overlap:.2f}",
            f"overlap {overlap:.3f}, by chance {by_chance:.3f}",
        )
        for variant, overlap in overlaps.items()
    }
    return variant_grid(cells, selected=selected, dark=dark)


@dataclass(frozen=True, slots=True)
class Cell:
    """What the cell of a variant shows."""

    share: float  # of the colours, 0..1, higher is better; NaN where nothing is known
    number: str  # empty where nothing is known
    reading: str  # on hover


def variant_grid(
    cells: Mapping[Variant, Cell], *, selected: Variant | None = None, dark: bool = False
) -> go.Figure:
    """Figure of a number for each variant: 6 rows (b, alpha) x 3 columns (beta).

    (1, 0, 0) scores every expert alike and is hatched. Invisible markers have [b, alpha, beta] as
    customdata.
    """
    hatch = stroke(*around(*_place(CONSTANT)), CLEAR, 0, fill="toself", fillcolor=CLEAR)
    hatch.fillpattern = {"shape": "/", "fgcolor": muted(dark), "fgopacity": 0.6, "size": 7}
    across, down = zip(*map(_place, cells), strict=True)
    marks = targets(
        across,
        down,
        [list(variant) for variant in cells],
        30,
        text=[_reading(variant, cell) for variant, cell in cells.items()],
        hovertemplate="%{text}<extra></extra>",
    )
    edges = []
    if selected is not None:
        x, y = _place(selected)
        ends = (x - 0.5, x + 0.5), (y - 0.5, y + 0.5)
        edges = [box(*ends, color, width) for color, width in halo(dark, 3)]
    common = {"showgrid": False, "fixedrange": True}
    above = {"xref": "paper", "xanchor": "left", "yanchor": "bottom"}
    heads = ("b = 0, sum over routed tokens", "b = 1, mean over routed tokens")
    return themed(
        [*(_cells(cells, b, dark) for b in (0, 1)), hatch, marks],
        dark,
        x=common
        | {
            "tickvals": list(EXPONENTS),
            "ticktext": [f"\u03b2 = {beta}" for beta in EXPONENTS],
            "range": [-0.56, 2.56],
        },
        y=common
        | {
            "tickvals": [b * _BLOCK_STEP + alpha for b in (0, 1) for alpha in EXPONENTS],
            "ticktext": [f"\u03b1 = {alpha}" for _ in (0, 1) for alpha in EXPONENTS],
            "range": [_BLOCK_STEP + 2.56, -0.56],
        },
        annotations=[
            *(_words(*entry, dark) for entry in cells.items()),
            *(annotation(0, b * _BLOCK_STEP - 0.5, head, **above) for b, head in enumerate(heads)),
        ],
        shapes=edges,
        # Any click goes to the nearest cell's marker, at any cell size.
        hovermode="closest",
        hoverdistance=-1,
        height=500,
        margin={"t": 26},
    )


def frame_style(selected: Variant, chart: str) -> str:
    """CSS that frames the cell of a variant in a map drawn without `selected`.

    Streamlit remounts a chart when its figure changes, which takes 100 ms; so a toggle
    changes the frame alone. `chart` is the CSS selector of the chart.
    """
    place = list(product((0, 1), EXPONENTS, EXPONENTS)).index(selected)
    shadow = "drop-shadow(0 0 1px #000)"
    return (
        f'{chart} .annotation[data-index="{place}"] .bg {{ stroke: #fff !important; '
        f"stroke-opacity: 1 !important; stroke-width: 3px !important; filter: {shadow} {shadow}; }}"
    )


def clicked_variant(event: object) -> Variant | None:
    """The variant in a selection on `variant_map`, or None."""
    try:
        point = event["selection"]["points"][-1]["customdata"]  # type: ignore[index]
        b, alpha, beta = (int(point[place]) for place in range(3))
    except (KeyError, IndexError, TypeError, ValueError):
        return None
    is_variant = len(point) == 3 and b in (0, 1) and alpha in EXPONENTS and beta in EXPONENTS
    return (b, alpha, beta) if is_variant else None


def describe(table: pd.DataFrame, pruned: int) -> str:
    """The variants that depend least and most on the corpus; `pruned` counts experts."""
    overlaps = {variant: overlap for variant, overlap in overlaps_of(table).items() if overlap >= 0}
    if not overlaps:
        return "No overlap between corpora is known for any variant."
    best = max(overlaps, key=lambda variant: overlaps[variant])
    worst = min(overlaps, key=lambda variant: overlaps[variant])
    return (
        f"Of {len(overlaps)} variants, {variant_label(best)} depends least on the calibration "
        f"corpus (overlap {overlaps[best]:.2f}{nearest_to(best, overlaps, pruned)}) and "
        f"{variant_label(worst)} most ({overlaps[worst]:.2f}); two random sets share "
        f"{table['chance'].mean():.2f}."
    )


def nearest_to(best: Variant, overlaps: Mapping[Variant, float], pruned: int) -> str:
    """Name the variants whose overlap is about the largest; see `too_near`."""
    near = [overlap for overlap in overlaps if too_near(overlaps[best], overlaps[overlap], pruned)]
    rivals = sorted(
        (variant for variant in near if variant != best), key=lambda variant: -overlaps[variant]
    )
    if not rivals:
        return ""
    more = f" and {len(rivals) - 1} more" if len(rivals) > 1 else ""
    return f", about equal to {variant_label(rivals[0])}{more}"


def overlaps_of(table: pd.DataFrame) -> dict[Variant, float]:
    """The overlap of each variant in a table `b, alpha, beta, overlap`; NaN where none is known."""
    variants = zip(*(table[name].tolist() for name in ("b", "alpha", "beta")), strict=True)
    overlaps = dict(zip(variants, table["overlap"].tolist(), strict=True))
    # Of a constant score, ties broken by id would look like perfect overlap.
    return {
        variant: math.nan if variant == CONSTANT else float(overlaps.get(variant, math.nan))
        for variant in product((0, 1), EXPONENTS, EXPONENTS)
    }


def variant_label(variant: Variant) -> str:
    """The name of a variant, if it has one, and its exponents."""
    text = "({}, {}, {})".format(*variant)
    return f"{VARIANT_NAMES[variant]} {text}" if variant in VARIANT_NAMES else text


def _place(variant: Variant) -> tuple[int, float]:
    """Column and row in the map."""
    b, alpha, beta = variant
    return beta, b * _BLOCK_STEP + alpha


def _cells(cells: Mapping[Variant, Cell], b: int, dark: bool) -> go.Heatmap:
    """The block of one value of b."""
    return heat(
        [[cells[b, alpha, beta].share for beta in EXPONENTS] for alpha in EXPONENTS],
        "",
        dark,
        {},
        x=list(EXPONENTS),
        y=[b * _BLOCK_STEP + alpha for alpha in EXPONENTS],
        showscale=False,
        xgap=2,
        ygap=2,
        hoverinfo="skip",
    )


def _reading(variant: Variant, cell: Cell) -> str:
    """Hover text of a variant's cell."""
    text = cell.reading if cell.number else "no data"
    if variant == CONSTANT:
        text = "gives every expert the same score"
    return f"{variant_label(variant)}<br>{text}"


def number_color(share: float, dark: bool) -> str:
    """Colour of a number on a cell."""
    return ink(dark) if math.isnan(share) else text_on(color_at(share, dark))


def _words(variant: Variant, cell: Cell, dark: bool) -> dict[str, Any]:
    x, y = _place(variant)
    number = cell.number or ("N/A" if variant == CONSTANT else "no data")
    name = "constant" if variant == CONSTANT else VARIANT_NAMES.get(variant, "")
    return annotation(
        x,
        y,
        f"{number}<br><span style='font-size:11px'>{name}</span>" if name else number,
        font={"color": number_color(cell.share, dark), "size": 14},
        borderpad=6,  # the frame keeps off the number
        # Without a background the hatch would cross the text.
        bgcolor=paper(dark) if variant == CONSTANT else None,
    )
