"""Quality against memory: all candidates and the Pareto front."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from textwrap import wrap
from typing import TYPE_CHECKING, Final

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from analysis.errors import StatsError
from analysis.foreign_text import in_html
from analysis.ranking.leaderboard import pareto_front
from app.charts.chart import Drawing, chart, made_by, model_fact
from app.charts.criterion_looks import looks
from app.charts.evaluations import evaluations, intervals_of, usual_measure
from app.charts.names import FULL
from app.charts.sizes import byte_unit, size_text
from app.charts.theme import ink, muted, primary, themed
from app.charts.traces import annotation, padded, spread, stroke
from app.choices import result_words, unless
from pruning.measures.result import MEASURES

if TYPE_CHECKING:
    from app.loaded import Loaded

COLUMNS: Final = ("candidate", "removed", "bytes", "value", "low", "high", "is_full", "on_front")
_NAME_WIDTH: Final = 18  # letters: a step may be short
_NAME_ROOM: Final = 0.2  # of the front's width


def pareto_table(points: pd.DataFrame, *, higher_is_better: bool) -> pd.DataFrame:
    """Add `on_front` to a table of the other COLUMNS; sorted by size, then best first.

    The original model competes: candidates larger and worse than it are not on the front.
    """
    points = points.dropna(subset=["bytes", "value"])
    front = pareto_front(points["bytes"], points["value"], higher_is_better=higher_is_better)
    table = points.assign(on_front=front)[list(COLUMNS)]
    order = np.lexsort((table["value"] * (-1 if higher_is_better else 1), table["bytes"]))
    return table.iloc[order].reset_index(drop=True)


@dataclass(frozen=True)
class Quality:
    """The vertical axis."""

    label: str
    axis: str
    higher_is_better: bool


def pareto_drawing(points: pd.DataFrame, quality: Quality, about: str) -> Drawing | None:
    """The chart of a table for `pareto_table`; None if no pruned candidate has both numbers."""
    table = pareto_table(points, higher_is_better=quality.higher_is_better)
    if table["is_full"].all():
        return None
    figure = partial(pareto_scatter, table, quality)
    return Drawing(figure, table, describe(table, label=quality.label), about)


@chart("pareto", "evaluate")
def draw(loaded: Loaded) -> Drawing:
    """What quality each amount of memory buys.

    Own evaluations on one corpus, in the usual setup, the newest of repeated ones.
    """
    results, choice = evaluations(loaded), loaded.choices.results
    usual, first = usual_measure(results), str(results["corpus"].iloc[0])
    measure, corpus = choice.measure or usual, choice.corpus or first
    rows = results[(results["measure"] == measure) & (results["corpus"] == corpus)]
    rows = rows[rows["way"] == ""].sort_values("created_at", kind="stable")
    rows = rows.drop_duplicates(["series", "removed", "granularity"], keep="last")
    pairs = zip(rows["series"], rows["removed"], strict=True)
    points = rows.assign(
        candidate=[f"{name}, {share:.0%}" if name else FULL for name, share in pairs],
        is_full=rows["series"] == "",
        value=rows["mean"],
    )
    definition, model = MEASURES[measure], loaded.model.name
    quality = Quality(
        f"{definition.label} on {corpus}", definition.axis, definition.higher_is_better
    )
    about = made_by(model_fact(loaded), quality.label, f"bars: {intervals_of(rows)}")
    chart = pareto_drawing(points, quality, about)
    if chart is None:
        raise StatsError(f"No pruned candidate of {model} was evaluated; see `moeprune sweep`.")
    options = result_words(measure=unless(measure, usual), evaluated_on=unless(corpus, first))
    return replace(chart, options=options)


def pareto_scatter(table: pd.DataFrame, quality: Quality, *, dark: bool = False) -> go.Figure:
    """Figure of a table of COLUMNS: value over bytes, the front as steps; NaN is no interval."""
    unit, unit_name = byte_unit(float(table["bytes"].max()) if len(table) else 0.0)
    rows = table.assign(x=table["bytes"] / unit).sort_values("x", kind="stable")
    front = rows[rows["on_front"]]
    steps = stroke(front["x"], front["value"], primary(dark), 2, name="best within the memory")
    steps.update(line_shape="hv", showlegend=None)
    look_by_name = looks(map(str, front["candidate"]), dark)
    colors = [look_by_name[str(name)].color for name in front[~front["is_full"]]["candidate"]]
    beaten = {"symbol": "circle-open", "size": 8, "color": muted(dark), "opacity": 0.55}
    best = {"symbol": "diamond", "size": 11, "color": colors}
    full = {"symbol": "star", "size": 14, "color": ink(dark)}
    marks = (
        ("dominated", rows[~rows["on_front"] & ~rows["is_full"]], beaten),
        ("on the front", front[~front["is_full"]], best),
        ("original model", rows[rows["is_full"]], full),
    )
    return themed(
        [steps, *(_points(points, name, mark) for name, points, mark in marks if len(points))],
        dark,
        x={
            "title": f"weights, {unit_name}",
            "showgrid": False,
            "tickformat": ".3~g",
            "range": padded(rows["x"], least=0),
        },
        y={"title": quality.axis},
        height=420,
        annotations=_names(front, quality.higher_is_better, dark),
    )


def _points(points: pd.DataFrame, name: str, marker: dict[str, object]) -> go.Scatter:
    names = [in_html(str(candidate)) for candidate in points["candidate"]]
    sizes = [size_text(float(byte)) for byte in points["bytes"]]
    has_interval = points["low"].notna() & points["high"].notna()
    value = points["value"]
    low, high = (points[column].where(has_interval, value) for column in ("low", "high"))
    bounds = [
        f"<br>95% {start:.4g} to {end:.4g}" if has_bounds else ""
        for start, end, has_bounds in zip(low, high, has_interval, strict=True)
    ]
    return go.Scatter(
        x=points["x"],
        y=points["value"],
        mode="markers",
        name=name,
        marker=marker,
        opacity=marker.get("opacity", 1.0),
        error_y=spread(value, low, high, symmetric=False, thickness=1.2, width=3),
        customdata=list(zip(names, sizes, bounds, strict=True)),
        hovertemplate="%{customdata[0]}<br>%{customdata[1]}: %{y:.4g}%{customdata[2]}"
        "<extra></extra>",
    )


def _names(front: pd.DataFrame, higher_is_better: bool, dark: bool) -> list[dict[str, object]]:
    """Labels of the front's candidates, on its empty side; of two too close ones, the better's."""
    room = _NAME_ROOM * float(front["x"].max() - front["x"].min()) if len(front) else 0.0
    gap = front["x"].shift(-1) - front["x"]
    front = front[~front["is_full"] & ~(gap < room)]
    side = 1 if higher_is_better else -1
    return [
        annotation(
            row["x"],
            row["value"],
            "<br>".join(in_html(part) for part in wrap(str(row["candidate"]), _NAME_WIDTH)),
            align="left",
            xanchor="left",
            yanchor="bottom" if higher_is_better else "top",
            xshift=8,
            yshift=6 * side,
            font={"color": ink(dark)},
        )
        for row in front.to_dict("records")
    ]


def describe(table: pd.DataFrame, *, label: str) -> str:
    """One sentence: the front, from smallest to largest."""
    pruned, front = table[~table["is_full"]], table[table["on_front"]]
    if pruned.empty:
        return "No pruned candidate has both a size and a number."
    best = front[~front["is_full"]].sort_values(["bytes", "candidate"])
    names = [
        f"{row['candidate']} ({size_text(float(row['bytes']))}, {row['value']:.3g})"
        for row in best.to_dict("records")
    ]
    many = f"{len(pruned)} pruned candidates" if len(pruned) > 1 else "1 pruned candidate"
    original = table[table["is_full"]]["value"]
    comparison = f"; the original model gets {original.iloc[0]:.3g}" if len(original) else ""
    if not names:
        return (
            f"{label}: the original model beats all of {many} at both size and quality{comparison}."
        )
    return (
        f"{label}: of {many} {len(names)} {'is' if len(names) == 1 else 'are'} beaten by no other "
        f"at both size and quality: {'; '.join(names)}{comparison}."
    )
