"""The chart of quality against memory, of a model's own evaluations or of benchmarks."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from analysis.ranking.pareto import pareto_front
from app.charts.chart import Drawing, made_by
from app.figures import pareto
from app.plots.names import FULL
from pruning.evaluate.result import MEASURES


@dataclass(frozen=True)
class Quality:
    """What the upright axis of a chart shows.

    Args:
        label: of the number.
        axis: the same with its unit.
        higher_is_better: direction.
    """

    label: str
    axis: str
    higher_is_better: bool


def pareto_table(points: pd.DataFrame, *, higher_is_better: bool) -> pd.DataFrame:
    """Table of `pareto.COLUMNS`, by size and then best first, from all but `on_front`.

    The full model takes part: a candidate that is larger and worse than it would be beaten.
    """
    known = points.dropna(subset=["bytes", "value"])
    front = pareto_front(known["bytes"], known["value"], higher_is_better=higher_is_better)
    table = known.assign(on_front=front)[list(pareto.COLUMNS)]
    order = np.lexsort((table["value"] * (-1 if higher_is_better else 1), table["bytes"]))
    return table.iloc[order].reset_index(drop=True)


def drawn(
    points: pd.DataFrame, quality: Quality
) -> tuple[Callable[[bool], go.Figure], pd.DataFrame, str] | None:
    """What a chart of these candidates draws, its numbers and what it says; see `Drawing`.

    None where no pruned candidate has both numbers.
    """
    better = quality.higher_is_better
    table = pareto_table(points, higher_is_better=better)
    if table["is_full"].all():
        return None

    def draw(dark: bool) -> go.Figure:
        return pareto.pareto_scatter(table, label=quality.axis, higher_is_better=better, dark=dark)

    return draw, table, pareto.describe(table, label=quality.label)


def evaluation_points(results: pd.DataFrame, measure: str, corpus: str) -> pd.DataFrame:
    """The columns that `pareto_table` takes, of a model's evaluations (`results_of`) on one text.

    Only what was measured as most are competes, and the newest of what was measured twice.
    """
    rows = results[(results["measure"] == measure) & (results["corpus"] == corpus)]
    rows = rows[rows["way"] == ""].sort_values("created_at", kind="stable")
    rows = rows.drop_duplicates(["series", "removed", "granularity"], keep="last")
    pairs = zip(rows["series"], rows["removed"], strict=True)
    return rows.assign(
        candidate=[f"{name}, {share:.0%}" if name else FULL for name, share in pairs],
        is_full=rows["series"] == "",
        value=rows["mean"],
    )


def own_pareto_chart(
    results: pd.DataFrame, measure: str, corpus: str, model: str
) -> Drawing | None:
    """A model's own candidates on one text; None where none was measured."""
    known = MEASURES[measure]
    label = f"{known.label} on {corpus}"
    found = drawn(
        evaluation_points(results, measure, corpus),
        Quality(label, known.axis, known.higher_is_better),
    )
    return Drawing("pareto", *found, made_by(model, label)) if found else None
