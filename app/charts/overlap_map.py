"""Overlap map: the 18 variants of S(b, alpha, beta), coloured by overlap between texts."""

import math
from typing import Any, Final

import pandas as pd
import plotly.graph_objects as go

from app.charts.chart import Chart, Drawing
from app.charts.context import Context
from app.charts.theme import (
    color_at,
    colorbar,
    colorscale,
    ink,
    muted,
    paper,
    text_on,
    themed,
)

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

_EXPONENTS: Final = (0, 1, 2)
_BLOCK_STEP: Final = 3.25  # the two values of b stand apart by a quarter of a cell
_HALF: Final = 0.5
_GREEK: Final = {"alpha": "\u03b1", "beta": "\u03b2"}


def _draw(context: Context) -> Drawing:
    means, selected = context.variant_means, context.ranking_criterion.exponents
    return Drawing(
        "overlap-map",
        lambda dark: variant_map(means, selected=selected, dark=dark),
        means,
        describe(means),
        context.about(f"gate {context.gate}"),
    )


OVERLAP_MAP = Chart("overlap-map", "explore", "Which variants depend on the text", _draw)


def variant_map(
    table: pd.DataFrame, *, selected: Variant | None = None, dark: bool = False
) -> go.Figure:
    """Figure of a table `b, alpha, beta, overlap`: 3 rows (alpha) x 6 columns (b, beta).

    `overlap` is the mean over pairs of texts, 0..1. (1, 0, 0) scores every expert alike: it may
    be absent and is shown hatched. Each cell carries an invisible marker, because Streamlit
    selects points and not cells; its customdata is [b, alpha, beta].
    """
    overlaps = _overlaps(table)
    traces = [*(_cells(overlaps, b, dark) for b in (0, 1)), _hatch(dark), _targets(overlaps)]
    words = [_words(variant, overlaps[variant], dark) for variant in _variants()]
    layout = _axes() | {
        "annotations": [*words, *_headings()],
        "shapes": _outline(selected, dark) if selected is not None else [],
        # Any click goes to the nearest cell's marker, however large the cell is drawn.
        "hovermode": "closest",
        "hoverdistance": -1,
        "height": 280,
        "margin": {"t": 30},
    }
    return themed(traces, layout, dark)


def clicked_variant(event: object) -> Variant | None:
    """The variant in the selection of `st.plotly_chart(on_select=...)`; None if nothing valid.

    `event` is what the widget returns, or its entry in session state.
    """
    try:
        point = event["selection"]["points"][-1]["customdata"]  # type: ignore[index]
        b, alpha, beta = (int(part) for part in point)
    except (KeyError, IndexError, TypeError, ValueError):
        return None
    return (b, alpha, beta) if (b, alpha, beta) in _variants() else None


def describe(table: pd.DataFrame) -> str:
    """One sentence: which variant depends least on the text, and which most."""
    found = {variant: overlap for variant, overlap in _overlaps(table).items() if overlap >= 0}
    if not found:
        return "No overlap between texts is known for any variant."
    best = max(found, key=lambda variant: found[variant])
    worst = min(found, key=lambda variant: found[variant])
    return (
        f"Of {len(found)} variants, {variant_label(best)} depends least on the calibration text "
        f"(overlap {found[best]:.2f}) and {variant_label(worst)} most ({found[worst]:.2f})."
    )


def _variants() -> list[Variant]:
    return [(b, alpha, beta) for b in (0, 1) for alpha in _EXPONENTS for beta in _EXPONENTS]


def _overlaps(table: pd.DataFrame) -> dict[Variant, float]:
    keys = zip(table["b"], table["alpha"], table["beta"], strict=True)
    known = dict(zip(((int(b), int(a), int(c)) for b, a, c in keys), table["overlap"], strict=True))
    overlaps = {variant: float(known.get(variant, math.nan)) for variant in _variants()}
    # A constant score ranks nothing; ties broken by id would fake a perfect overlap.
    return {**overlaps, DEGENERATE: math.nan}


def variant_label(variant: Variant) -> str:
    """The name of a variant, if it has one, and its exponents."""
    text = "({}, {}, {})".format(*variant)
    return f"{VARIANT_NAMES[variant]} {text}" if variant in VARIANT_NAMES else text


def _place(variant: Variant) -> tuple[float, int]:
    b, alpha, beta = variant
    return b * _BLOCK_STEP + beta, alpha


def _cells(overlaps: dict[Variant, float], b: int, dark: bool) -> dict[str, Any]:
    return {
        "type": "heatmap",
        "x": [b * _BLOCK_STEP + beta for beta in _EXPONENTS],
        "y": list(_EXPONENTS),
        "z": [[overlaps[b, alpha, beta] for beta in _EXPONENTS] for alpha in _EXPONENTS],
        "zmin": 0,
        "zmax": 1,
        "colorscale": colorscale(),
        "colorbar": colorbar("overlap", dark, tickvals=[0, 0.5, 1]),
        "showscale": b == 1,
        "xgap": 2,
        "ygap": 2,
        "hoverinfo": "skip",
        "hoverongaps": False,
    }


def _hatch(dark: bool) -> dict[str, Any]:
    x, y = _place(DEGENERATE)
    left, right, top, bottom = x - _HALF, x + _HALF, y - _HALF, y + _HALF
    return {
        "type": "scatter",
        "x": [left, right, right, left, left],
        "y": [top, top, bottom, bottom, top],
        "mode": "lines",
        "line": {"width": 0},
        "fill": "toself",
        "fillcolor": "rgba(0,0,0,0)",
        "fillpattern": {"shape": "/", "fgcolor": muted(dark), "fgopacity": 0.6, "size": 7},
        "hoverinfo": "skip",
        "showlegend": False,
    }


def _targets(overlaps: dict[Variant, float]) -> dict[str, Any]:
    variants = _variants()
    places = [_place(variant) for variant in variants]
    invisible = {"marker": {"opacity": 0}}
    return {
        "type": "scatter",
        "x": [x for x, _ in places],
        "y": [y for _, y in places],
        "customdata": [list(variant) for variant in variants],
        "text": [
            f"{variant_label(variant)}<br>{_reading(variant, overlaps[variant])}"
            for variant in variants
        ],
        "mode": "markers",
        "marker": {"symbol": "square", "size": 30, "opacity": 0},
        "selected": invisible,
        "unselected": invisible,
        "hovertemplate": "%{text}<extra></extra>",
        "showlegend": False,
    }


def _reading(variant: Variant, overlap: float) -> str:
    if variant == DEGENERATE:
        return "the same score for every expert: nothing to rank"
    return "no data" if math.isnan(overlap) else f"overlap {overlap:.3f}"


def _words(variant: Variant, overlap: float, dark: bool) -> dict[str, Any]:
    x, y = _place(variant)
    is_known = not math.isnan(overlap)
    color = text_on(color_at(overlap)) if is_known else ink(dark)
    number = f"{overlap:.2f}" if is_known else "N/A" if variant == DEGENERATE else "no data"
    name = "constant" if variant == DEGENERATE else VARIANT_NAMES.get(variant, "")
    # The longest name is wider than a cell; broken before its last word it fits.
    lines = [
        number,
        *(f"<span style='font-size:11px'>{part}</span>" for part in name.rsplit(" ", 1)),
    ]
    return {
        "x": x,
        "y": y,
        "text": "<br>".join(lines) if name else number,
        "font": {"color": color, "size": 14},
        # Without its own ground the text would be crossed by the hatch.
        "bgcolor": paper(dark) if variant == DEGENERATE else None,
        "showarrow": False,
    }


def _outline(variant: Variant, dark: bool) -> list[dict[str, Any]]:
    x, y = _place(variant)
    return [
        {
            "type": "rect",
            "x0": x - _HALF,
            "x1": x + _HALF,
            "y0": y - _HALF,
            "y1": y + _HALF,
            "line": {"color": color, "width": width},
        }
        for color, width in ((paper(dark), 6), (ink(dark), 3))
    ]


def _headings() -> list[dict[str, Any]]:
    return [
        {
            "x": b * _BLOCK_STEP + 1,
            "y": 1,
            "yref": "paper",
            "yanchor": "bottom",
            "yshift": 4,
            "text": text,
            "showarrow": False,
        }
        for b, text in ((0, "b = 0, sum over routed tokens"), (1, "b = 1, mean over routed tokens"))
    ]


def _axes() -> dict[str, Any]:
    common = {"showgrid": False, "fixedrange": True}
    return {
        "xaxis": common
        | {
            "tickvals": [b * _BLOCK_STEP + beta for b in (0, 1) for beta in _EXPONENTS],
            "ticktext": [f"{_GREEK['beta']} = {beta}" for _ in (0, 1) for beta in _EXPONENTS],
            "range": [-0.56, _BLOCK_STEP + 2.56],
        },
        "yaxis": common
        | {
            "tickvals": list(_EXPONENTS),
            "ticktext": [f"{_GREEK['alpha']} = {alpha}" for alpha in _EXPONENTS],
            "range": [2.56, -0.56],
        },
    }
