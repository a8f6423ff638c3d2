"""Schedules side by side: share of experts kept per layer."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from analysis.errors import PlanError
from analysis.foreign_text import in_html
from app.charts.chart import Drawing, chart, made_by, model_fact
from app.charts.theme import SMALL_SIZE, color_at, ink, paper, primary, text_on, themed
from app.charts.traces import annotation, box, heat
from app.loaded import Loaded
from pruning.plan.budget import Budget
from pruning.plan.units import Units
from pruning.planning.choice import schedule_label
from pruning.planning.ranking import Ranking
from pruning.planning.side_by_side import schedules_table, searched_rows
from pruning.schedules import MEASURED
from pruning.search.store import order_digest
from pruning.spec.spec import FREQUENCY
from pruning.study import shared

_LABELLED_LAYERS: Final = 4  # beside names and colour bar on a phone
_NUMBERED_LAYERS: Final = 24  # more would leave no room for the numbers


@dataclass(frozen=True, eq=False)
class ScheduleComparison:
    """All schedules on one budget; see `schedules_table`."""

    table: pd.DataFrame
    counts: pd.DataFrame
    refused: dict[str, str]

    def kept_by(self, schedule: str) -> dict[int, int] | None:
        """Layer -> experts kept by a schedule; None if impossible."""
        rows = self.counts[self.counts["schedule"] == schedule]
        if rows.empty:
            return None
        return dict(zip(rows["layer"].tolist(), rows["kept"].tolist(), strict=True))


def with_tokens(loaded: Loaded) -> Ranking:
    """The ranking of the plan, with token counts if there are any, for all schedules."""
    spec = loaded.choices.spec
    by_text = loaded.choices.ranking_criterion.source == "routed"
    if not (by_text or spec.spread.is_measured):
        corpora = loaded.choices.corpora
        # The frequency schedule needs token counts.
        schedule = FREQUENCY if corpora else "uniform"
        spec = spec.changed(schedule=schedule, schedule_file=None, corpora=corpora)
    return loaded.study.ranking(spec)


def ranking_digest(ranking: Ranking) -> str:
    """Digest of the ranking; see `order_digest`."""
    return order_digest(ranking.table)


def sides_of(
    ranking: Ranking, units: Units, budget: Budget, searched: pd.DataFrame
) -> ScheduleComparison:
    """Every schedule and searched ones, on one budget."""
    return ScheduleComparison(*schedules_table(ranking, units, budget, searched))


def sides(loaded: Loaded) -> ScheduleComparison:
    """Every schedule on the chosen budget, under its constraints."""
    ranking, study, (units, budget) = with_tokens(loaded), loaded.study, loaded.budget
    has_curves = loaded.choices.spec.ranking.granularity in loaded.study.measured_granularities
    if has_curves and ranking.sensitivity is None:
        spec = ranking.spec
        corpora = spec.ranking.corpora if spec.ranking.reads_text else ()
        spec = spec.changed(schedule=MEASURED, schedule_file=None, corpora=corpora)
        sensitivity = study.ranking(spec).sensitivity
        ranking = study.cached(shared, replace(ranking, sensitivity=sensitivity))
    order = study.cached(ranking_digest, ranking)
    searched = searched_rows(study.searches, budget.total, order)
    return study.cached(sides_of, ranking, units, budget, searched)


@chart("schedules", "plan")
def draw(loaded: Loaded) -> Drawing:
    """How each schedule spreads the budget."""
    if loaded.choices.spec.by_neuron:
        raise PlanError(
            "Schedules spread whole experts; of a plan of neurons draw neuron-layers, which has "
            "every scope."
        )
    counts, label = sides(loaded).counts, schedule_label(loaded.choices.schedule)
    labelled_counts = counts.assign(schedule=counts["schedule"].map(schedule_label))
    figure = partial(loaded.study.cached, schedules_figure, labelled_counts, marked=label)
    first = loaded.first
    runs = ", ".join(run.manifest.run_id for run in first.choice.runs)
    facts = (runs, first.criterion.label, f"sparsity {loaded.sparsity}")
    return Drawing(figure, counts, describe(labelled_counts), made_by(model_fact(loaded), *facts))


def schedules_figure(table: pd.DataFrame, *, marked: str = "", dark: bool = False) -> go.Figure:
    """Figure of a table `schedule, layer, kept, removed`: a row per schedule, one `marked`."""
    names = [str(name) for name in table["schedule"].unique()]
    layers = [str(layer) for layer in table["layer"].unique()]
    parts = table["kept"], table["kept"] / (table["kept"] + table["removed"])
    kept, share = (np.asarray(values).reshape(len(names), -1) for values in parts)
    has_numbers = len(layers) <= _NUMBERED_LAYERS
    cells = heat(
        share,
        "share kept",
        dark,
        {"tickformat": ".0%", "nticks": 6},
        x=layers,
        y=names,
        customdata=kept,
        showscale=not has_numbers,
        xgap=1 if has_numbers else 0,
        ygap=3,
        hoverongaps=None,
        hovertemplate="%{y}, layer %{x}: %{customdata} kept, %{z:.0%}<extra></extra>",
    )
    numbers = [
        annotation(
            layers[column],
            names[row],
            str(number),
            font={"size": SMALL_SIZE, "color": text_on(color_at(float(share[row, column]), dark))},
        )
        for (row, column), number in np.ndenumerate(kept)
        if has_numbers
    ]
    edge = []
    if marked in names:
        row = names.index(marked)
        edge = [box((-0.5, len(layers) - 0.5), (row - 0.5, row + 0.5), primary(dark), 3)]
    labels = [f"<b>{in_html(name)}</b>" if name == marked else in_html(name) for name in names]
    labelled = layers[:: -(-len(layers) // _LABELLED_LAYERS)]
    return themed(
        [cells],
        dark,
        x={
            "title": "layer",
            "type": "category",
            "tickvals": labelled,
            "tickangle": 0,
            "showgrid": False,
        },
        y={
            "autorange": "reversed",
            "tickmode": "array",
            "tickvals": names,
            "ticktext": labels,
            "tickfont": {"size": SMALL_SIZE, "color": ink(dark)},
            "showgrid": False,
        },
        annotations=numbers,
        shapes=edge,
        height=90 + 30 * len(names),
        plot_bgcolor=paper(dark),
    )


def describe(table: pd.DataFrame) -> str:
    """One sentence: how uneven the schedules are."""
    kept = table.groupby("schedule", sort=False)["kept"].agg(["min", "max"])
    spread = {str(name): (int(low), int(high)) for name, low, high in kept.itertuples()}
    widest = max(spread, key=lambda name: spread[name][1] - spread[name][0])
    low, high = spread[widest]
    if low == high:
        return "Every schedule keeps the same number of experts in every layer."
    return (
        f"{len(spread)} schedules spend one budget; {widest} differs most between layers, from "
        f"{low} to {high} experts kept."
    )
