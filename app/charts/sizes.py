"""Bytes of the weights before and after pruning, by part."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import pandas as pd
import plotly.graph_objects as go

from analysis.foreign_text import in_html
from app.charts.chart import Drawing, chart, of_corpora, plan_fact
from app.charts.theme import (
    PATTERNS,
    SERIES_LIGHT,
    contrast,
    ink,
    paper,
    series_color,
    text_on,
    themed,
)
from app.charts.traces import annotation
from pruning.plan.size_words import change_words
from pruning.plan.sizes import ModelPart

if TYPE_CHECKING:
    from app.loaded import Loaded

_GIB: Final = 1024**3
_MIB: Final = 1024**2
# In legends, whose columns are as wide as the longest name.
_SHORT: Final = {ModelPart.TIED_HEAD: "embedding as head"}
_MIN_LABELLED_SHARE: Final = 0.09  # narrower segments would clip their label; the hover has it


@chart("sizes", "export")
def draw(loaded: Loaded) -> Drawing:
    """What pruning saves."""
    table = loaded.study.sizes(loaded.shown_plan).table
    about = of_corpora(loaded, plan_fact(loaded))
    return Drawing(partial(sizes_figure, table), table, describe(table), about)


def sizes_figure(table: pd.DataFrame, *, dark: bool = False) -> go.Figure:
    """Figure of a table `part, before, after` in bytes: two stacked bars."""
    totals = {row: float(table[row].sum()) for row in ("before", "after")}
    unit, name = byte_unit(max(totals.values()))
    rows = table[["part", "before", "after"]].to_numpy().tolist()
    places = {part: place for place, (part, *_) in enumerate(rows)}
    if ModelPart.TIED_HEAD in places:  # the hue of what it copies, with a pattern of its own
        places[ModelPart.TIED_HEAD] = places[ModelPart.EMBEDDINGS] + len(SERIES_LIGHT)
    bars = [_segment(places[part], part, sizes, totals, dark) for part, *sizes in rows]
    widest = max(totals.values()) / unit
    return themed(
        bars,
        dark,
        x={"title": f"weights, {name}", "range": [0, widest * 1.35 or 1]},
        y={"categoryorder": "array", "categoryarray": ["after", "before"], "showgrid": False},
        annotations=[
            annotation(total / unit, row, f"<b>{size_text(total)}</b>", xanchor="left", xshift=6)
            for row, total in totals.items()
        ],
        barmode="stack",
        # In a narrow column a legend has a line for each part, in half of the height.
        height=264 + 40 * max(0, sum(bar.showlegend for bar in bars) - 6),
        bargap=0.3,
        showlegend=True,
        legend={"traceorder": "normal"},
        # Labels of one size, or none: plotly would shrink each to its segment.
        uniformtext={"minsize": 11, "mode": "hide"},
    )


def describe(table: pd.DataFrame) -> str:
    """One sentence: both totals, and the part that saves most; or by how much it grows."""
    before, after = float(table["before"].sum()), float(table["after"].sum())
    saved = table["before"] - table["after"]
    most = table.loc[saved.sort_values(ascending=False, kind="stable").index[0]]
    if after >= before:
        return f"The weights take {size_text(after)}, {change_words(int(before), int(after))}."
    return (
        f"The weights shrink from {size_text(before)} to {size_text(after)} "
        f"(-{1 - after / before:.0%}), mostly in {most['part']}."
    )


def size_text(num_bytes: float) -> str:
    """Three significant digits in GiB, or in MiB below 1 GiB."""
    value, name = (num_bytes / _GIB, "GiB") if num_bytes >= _GIB else (num_bytes / _MIB, "MiB")
    digits = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:.{digits}f} {name}"


def byte_unit(largest: float) -> tuple[int, str]:
    """Size and name of the unit for an axis up to this many bytes."""
    return (_GIB, "GiB") if largest >= _GIB else (_MIB, "MiB")


def _segment(
    index: int, part: str, sizes: list[float], totals: dict[str, float], dark: bool
) -> go.Bar:
    color = series_color(index, dark)
    unit, _ = byte_unit(max(totals.values()))
    widest = max(totals.values()) or 1
    labels = [size_text(size) if size / widest > _MIN_LABELLED_SHARE else "" for size in sizes]
    return go.Bar(
        x=[size / unit for size in sizes],
        y=list(totals),
        orientation="h",
        showlegend=any(sizes),
        name=in_html(_SHORT.get(ModelPart(part), part)),
        marker={
            "color": color,
            "line": {"color": paper(dark), "width": 1},
            "pattern": {
                # "replace", the default, draws coloured lines on a transparent ground.
                "fillmode": "overlay",
                "shape": PATTERNS[index % len(PATTERNS)],
                "fgcolor": ink(dark) if contrast(ink(dark), color) > 3 else paper(dark),
                "fgopacity": 0.22,
                "size": 7,
                "solidity": 0.2,
            },
        },
        text=labels,
        textposition="inside",
        insidetextanchor="middle",
        textangle=0,
        textfont={"color": text_on(color)},
        customdata=[size_text(size) for size in sizes],
        hovertemplate=f"{in_html(part)}, %{{y}}: %{{customdata}}<extra></extra>",
    )
