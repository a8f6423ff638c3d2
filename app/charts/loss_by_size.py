"""Loss against size: experts removed, fewer bits, and both."""

from functools import partial
from typing import Final

import pandas as pd
import plotly.graph_objects as go

from analysis.foreign_text import in_html
from app.charts.chart import Drawing, chart
from app.charts.front_words import ORIGINAL, describe, named
from app.charts.sizes import byte_unit, size_text
from app.charts.theme import ink, muted, primary, themed
from app.charts.traces import annotation, stroke
from app.loaded import Loaded, made_by
from pruning.evaluate.front import stored_front
from pruning.evaluate.record import EvaluationStore

# What a mark stands for -> its symbol; hollow where the loss is predicted.
_KINDS: Final = {
    ORIGINAL: "star",
    "pruned": "circle",
    "fewer bits": "square",
    "pruned, fewer bits": "diamond",
}


@chart("loss-by-size", "start")
def draw(loaded: Loaded) -> Drawing:
    """What each size costs: fewer experts, fewer bits, or both."""
    store = EvaluationStore(loaded.store.directories)
    front = loaded.keep(stored_front, store, loaded.model)
    digest = loaded.shown.plan.unrepaired.digest if loaded.shown else ""
    digests = {digest, loaded.shown.plan.digest} if loaded.shown else set[str]()
    table = named(front.table).assign(is_shown=front.table["plan"].isin(digests))
    about = made_by(loaded.model.name, "loss increase, mean over corpora", "bits are simulated")
    return Drawing(partial(front_figure, table), table, describe(front), about)


def front_figure(table: pd.DataFrame, *, dark: bool = False) -> go.Figure:
    """Figure of a `named` table with `is_shown`: loss increase over bytes, the front as steps."""
    unit, unit_name = byte_unit(float(table["bytes"].max()))
    ends = table["bytes"].min() / unit, table["bytes"].max() / unit
    margin = 0.06 * (ends[1] - ends[0])
    rows = table.assign(x=table["bytes"] / unit)
    best = rows[rows["on_front"]]
    steps = stroke(best["x"], best["mean"], primary(dark), 2, line_shape="hv")
    steps.update(name="least loss within a size", showlegend=True)
    marks = [
        _marks(rows[rows["kind"] == kind], kind, symbol, dark) for kind, symbol in _KINDS.items()
    ]
    shown = rows[rows["is_shown"] & (rows["bits"] == "")].head(1)
    ring = {"symbol": "circle-open", "size": 20, "color": ink(dark), "line": {"width": 2}}
    here = go.Scatter(
        x=shown["x"],
        y=shown["mean"],
        mode="markers",
        marker=ring,
        name="this plan",
        hoverinfo="skip",
    )
    return themed(
        [steps, *marks, here],
        dark,
        x={
            "title": f"weights, {unit_name}",
            "showgrid": False,
            "tickformat": ".3~g",
            "range": [ends[0] - margin, ends[1] + margin],
        },
        y={"title": "loss increase, nats per token", "tickformat": ".2~f"},
        height=420,
        annotations=_labels(rows, shown, dark),
    )


def _marks(rows: pd.DataFrame, kind: str, symbol: str, dark: bool) -> go.Scatter:
    color = {"pruned": primary(dark), "fewer bits": ink(dark), ORIGINAL: ink(dark)}.get(
        kind, muted(dark)
    )
    symbols = [symbol if is_measured else f"{symbol}-open" for is_measured in rows["is_measured"]]
    notes = [
        f"{in_html(row['candidate'])}<br>{size_text(row['bytes'])}: {row['mean']:+.3f}"
        f" ({row['low']:+.3f} to {row['high']:+.3f}), "
        f"{'measured' if row['is_measured'] else 'predicted'}"
        f"<br>worst {row['worst']:+.3f} on {in_html(row['worst_on'])}"
        for row in rows.to_dict("records")
    ]
    return go.Scatter(
        x=rows["x"],
        y=rows["mean"],
        mode="markers",
        name=kind,
        marker={"symbol": symbols, "size": 9, "color": color},
        customdata=notes,
        hovertemplate="%{customdata}<extra></extra>",
    )


def _labels(rows: pd.DataFrame, shown: pd.DataFrame, dark: bool) -> list[dict[str, object]]:
    """Names of the original in the bits that people ask for, and of the plan on screen."""
    references = rows[(rows["removed"] == 0) & rows["bits"].isin(["", "8", "4"])]
    texts = [*references.to_dict("records"), *shown.to_dict("records")]
    return [
        annotation(
            row["x"],
            row["mean"],
            in_html(row["candidate"]),
            yshift=16 if row["removed"] else -16,
            font={"color": ink(dark)},
        )
        for row in texts
    ]
