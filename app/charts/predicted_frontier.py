"""Predicted loss against bytes: the best plan of every budget, uniform, measured plans."""

from __future__ import annotations

from functools import partial
from math import isnan
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from app.charts.chart import Drawing, chart, of_corpora
from app.charts.sensitivity import corpora_text
from app.charts.sizes import byte_unit, size_text
from app.charts.theme import CLEAR, Look, ink, muted, primary, themed
from app.charts.traces import series, signed, stroke
from pruning.planning.frontier import BEST, OTHER, SHOWN, UNIFORM, frontier_table, with_plan
from pruning.planning.measured import removed_by
from pruning.planning.ranking import needs_sensitivity

if TYPE_CHECKING:
    from app.loaded import Loaded

_NAMES: Final = {BEST: "best plan", UNIFORM: "uniform"}
_POINTS: Final = {
    BEST: ("diamond", "best, measured"),
    UNIFORM: ("square", "uniform, measured"),
    OTHER: ("circle-open", "another schedule, measured"),
}


@chart("predicted-frontier", "plan")
def draw(loaded: Loaded) -> Drawing:
    """Predicted loss of every size."""
    study, ranking = loaded.study, loaded.ranking
    recipe, error = ranking.without_budget, study.sum_error(ranking)
    if error is None:
        raise needs_sensitivity(recipe, recipe.spec)
    table = study.cached(frontier_table, recipe, error)
    if loaded.shown and loaded.predicted:
        order = study.order(ranking)
        removed = removed_by(loaded.shown.plan, order.sizes, loaded.model)
        table = with_plan(table, order, removed, error)
    by_neuron = recipe.by_neuron
    alt = describe(table, corpora_text(error.curves), by_neuron=by_neuron)
    about = of_corpora(loaded, ", ".join(curve.name for curve in error.curves.curves))
    return Drawing(partial(frontier_figure, table, by_neuron=by_neuron), table, alt, about)


draw_neuron_frontier = draw.of_neurons(
    "neuron-frontier", "Predicted loss of every size, of neurons"
)


def frontier_figure(
    table: pd.DataFrame, *, by_neuron: bool = False, dark: bool = False
) -> go.Figure:
    """Figure of a table of `frontier_table`: loss increase over bytes, best with its band.

    What was measured replaces what was predicted, also on the lines.
    """
    unit, name = byte_unit(float(table["bytes"].max()))
    title = f"weights, {name}{' without padding' if by_neuron else ''}"
    table = _with_measured(table.assign(x=table["bytes"] / unit))
    best = table[table["series"] == BEST]
    around = pd.concat([best["x"], best["x"][::-1]]), pd.concat([best["low"], best["high"][::-1]])
    band = stroke(*around, CLEAR, 0, name="95% band", showlegend=True, fill="toself")
    band.update(fillcolor=primary(dark), opacity=0.22)
    traces = [band]
    colors = {BEST: primary(dark), UNIFORM: muted(dark), OTHER: ink(dark)}
    for kind, words in _NAMES.items():
        rows = table[table["series"] == kind]
        dash = "solid" if kind == BEST else "dash"
        traces.append(
            series(
                Look(colors[kind], "circle", dash),
                words,
                (rows["x"], signed(rows["loss"], 3)),
                f"{words}, %{{customdata[2]}}: %{{y:+.3f}}, %{{customdata[0]:.0f}} removed, "
                "%{customdata[1]}",
                mode="lines",
                customdata=list(
                    zip(rows["removed"], map(size_text, rows["bytes"]), rows["how"], strict=True)
                ),
            )
        )
    measured = table[table["measured"].notna()]
    for kind, (symbol, words) in _POINTS.items():
        rows = measured[measured["series"] == kind]
        if len(rows):
            traces.append(
                series(
                    Look(colors[kind], symbol, "solid"),
                    words,
                    (rows["x"], signed(rows["measured"], 3)),
                    f"{words}: %{{y:+.3f}}, predicted %{{customdata:+.3f}}",
                    mode="markers",
                    customdata=signed(rows["predicted"], 3),
                )
            )
    if len(rows := table[table["series"] == SHOWN]):
        words, look = f"this plan, {rows['how'].iloc[0]}", Look(ink(dark), "star", "solid")
        points = rows["x"], signed(rows["loss"], 3)
        traces.append(series(look, words, points, f"{words}: %{{y:+.3f}}", mode="markers"))
    return themed(
        traces,
        dark,
        x={
            "title": title,
            "showgrid": False,
            "tickformat": ".3~g",
        },
        y={"title": "loss increase, nats per token", "rangemode": "tozero"},
        height=420,
    )


def _with_measured(table: pd.DataFrame) -> pd.DataFrame:
    """The table with `loss` and `how`: measured, without a band, or else predicted."""
    is_measured = table["measured"].notna()
    ends = {end: table[end].mask(is_measured, table["measured"]) for end in ("low", "high")}
    loss = table["predicted"].mask(is_measured, table["measured"])
    return table.assign(loss=loss, how=np.where(is_measured, "measured", "predicted"), **ends)


def describe(table: pd.DataFrame, where: str, *, by_neuron: bool = False) -> str:
    """What the best plan costs at half of the largest budget; error and source of predictions."""
    best = table[table["series"] == BEST]
    at = int((best["removed"] - best["removed"].max() / 2).abs().to_numpy().argmin())
    row = best.iloc[at]
    even = table[(table["series"] == UNIFORM) & (table["removed"] == row["removed"])].iloc[0]
    measured = table[table["measured"].notna() & (table["series"] != SHOWN)]
    wrong = "no plan of this order was measured as a whole yet, so the band is a guess"
    if len(measured):
        apart = float(np.abs(measured["predicted"] - measured["measured"]).mean())
        plans = f"{len(measured)} measured plans" if len(measured) > 1 else "1 measured plan"
        wrong = (
            f"over {plans}, each left out in turn, predictions are off by {apart:.2f} on average"
        )
    padding, what = (" without padding", "neurons") if by_neuron else ("", "experts")
    this = "".join(
        f"This plan {_cost(row)}. " for row in table[table["series"] == SHOWN].to_dict("records")
    )
    return (
        f"At {size_text(float(row['bytes']))}{padding}, {row['removed']:,} {what} "
        f"fewer, the best plan (--schedule measured --cost nll) {_cost(row)} nats per token, "
        f"uniform {_cost(even)}; {wrong}. {this}Mean over {where}; 95% of plans should lie in "
        "their band, which counts the draw of texts and the error of the sum over layers."
    )


def _cost(row: Any) -> str:
    if not isnan(row["measured"]):
        return f"adds {row['measured']:+z.2f}"
    return f"is predicted to add {row['predicted']:+z.2f} ({row['low']:.2f} to {row['high']:.2f})"
