"""Schedules side by side: which share of its experts each layer keeps."""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from numpy.typing import NDArray

from app.charts.chart import Chart, Drawing
from app.charts.context import Context
from app.charts.theme import (
    SMALL_SIZE,
    apply_theme,
    color_at,
    colorbar,
    colorscale,
    ink,
    paper,
    plain,
    primary,
    text_on,
)
from pruning.budget import sparsity_budget
from pruning.planning.planning import PlanChoice, schedule_label, schedules_table, searched_rows
from pruning.planning.ranking import FREQUENCY, Selection
from pruning.schedules import Spending
from pruning.search.store import order_digest

_ROW_PX: Final = 30
_LABELLED_LAYERS: Final = 8  # in half of a narrow page
_NUMBERED_LAYERS: Final = 24  # more would not leave room for the numbers


@dataclass(frozen=True, eq=False)
class Sides:
    """All schedules on the budget of a context, see `schedules_table`."""

    table: pd.DataFrame
    counts: pd.DataFrame
    refused: dict[str, str]

    def kept_by(self, schedule: str) -> dict[int, int] | None:
        """Layer -> experts kept by a schedule; None where it is not possible."""
        rows = self.counts[self.counts["schedule"] == schedule]
        if rows.empty:
            return None
        return dict(zip(rows["layer"].tolist(), rows["kept"].tolist(), strict=True))


def selection_of(context: Context) -> Selection:
    """The recipe with its statistics, and with counts of tokens where there are any.

    Raises:
        UserError: no statistics that fit.
    """
    request = context.request
    if context.ranking_criterion.source != "routed" and context.corpora:
        # So that the frequency schedule has its numbers as well.
        asked = {"schedule": FREQUENCY, "corpora": context.corpora}
        request = request.model_copy(update=asked)
    return context.selection(request)


def order_of(selection: Selection) -> str:
    """The order in which experts stay; see `order_digest`."""
    return order_digest(selection.table)


def spending_of(context: Context, choice: PlanChoice) -> Spending:
    """Budget and constraints, without what is set by hand.

    Raises:
        PlanError: constraints that cannot be read.
    """
    layers = context.model.layers
    return Spending(layers, sparsity_budget(layers, context.sparsity), choice.constraints())


def sides_of(selection: Selection, spending: Spending, searched: pd.DataFrame) -> Sides:
    """Every schedule on one budget, and what searches found."""
    return Sides(*schedules_table(selection, spending, searched))


def sides(context: Context) -> Sides:
    """Every schedule on the budget and under the constraints of the context."""
    selection, spending = selection_of(context), spending_of(context, context.plan)
    order = context.keep(order_of, selection)
    searched = searched_rows(context.known_searches, spending.budget.total, order)
    return context.keep(sides_of, selection, spending, searched)


def _draw(context: Context) -> Drawing:
    counts, label = sides(context).counts, schedule_label(context.plan.row)
    named = counts.assign(schedule=counts["schedule"].map(schedule_label))
    return Drawing(
        "schedules",
        lambda dark: context.keep(schedules_figure, named, shown=label, dark=dark),
        counts,
        describe(named),
        context.about_selection(),
    )


SCHEDULES = Chart(
    "schedules", "plan", "How each schedule spreads the budget", _draw, reads_plan=True
)


def schedules_figure(table: pd.DataFrame, *, shown: str = "", dark: bool = False) -> go.Figure:
    """Figure of a table `schedule, layer, kept, removed`: one row a schedule, one cell a layer.

    Args:
        table: schedules in the order of the rows, from the top.
        shown: the schedule to mark.
        dark: for the dark theme.
    """
    names = [str(name) for name in table["schedule"].unique()]
    layers = [str(layer) for layer in table["layer"].unique()]
    kept, share = (_grid(values, len(names)) for values in (table["kept"], _shares(table)))
    fig = go.Figure(
        go.Heatmap(
            z=share,
            x=layers,
            y=names,
            customdata=kept,
            colorscale=colorscale(),
            zmin=0,
            zmax=1,
            xgap=1 if len(layers) <= _NUMBERED_LAYERS else 0,
            ygap=3,
            colorbar=colorbar("share kept", dark, tickformat=".0%", nticks=6),
            hovertemplate="%{y}, layer %{x}: %{customdata} kept, %{z:.0%}<extra></extra>",
        )
    )
    apply_theme(fig, dark)
    if len(layers) <= _NUMBERED_LAYERS:
        for position, name in enumerate(names):
            _write_numbers(fig, name, layers, kept[position], share[position])
    if shown in names:
        row = names.index(shown)
        edge = {"color": primary(dark), "width": 3}
        fig.add_shape(
            type="rect", x0=-0.5, x1=len(layers) - 0.5, y0=row - 0.5, y1=row + 0.5, line=edge
        )
    _lay_out(fig, (names, layers), shown, dark)
    return fig


def _lay_out(fig: go.Figure, axes: tuple[list[str], list[str]], shown: str, dark: bool) -> None:
    """Rows from the top, the shown one in bold."""
    names, layers = axes
    height = 90 + _ROW_PX * len(names)
    fig.update_layout(height=height, margin={"t": 12, "b": 8}, plot_bgcolor=paper(dark))
    labelled = layers[:: -(-len(layers) // _LABELLED_LAYERS)]
    fig.update_xaxes(
        title_text="layer", type="category", tickvals=labelled, tickangle=0, showgrid=False
    )
    labels = [f"<b>{plain(name)}</b>" if name == shown else plain(name) for name in names]
    fig.update_yaxes(
        autorange="reversed",
        tickmode="array",
        tickvals=names,
        ticktext=labels,
        tickfont={"size": SMALL_SIZE, "color": ink(dark)},
        showgrid=False,
    )


def _shares(table: pd.DataFrame) -> "pd.Series[float]":
    return table["kept"] / (table["kept"] + table["removed"])


def _grid(values: "pd.Series[Any]", rows: int) -> NDArray[Any]:
    return np.asarray(values).reshape(rows, -1)


def _write_numbers(
    fig: go.Figure, name: str, layers: list[str], kept: NDArray[Any], share: NDArray[Any]
) -> None:
    """The number of experts in each cell of a row, black or white."""
    for layer, number, part in zip(layers, kept, share, strict=True):
        font = {"size": SMALL_SIZE, "color": text_on(color_at(float(part)))}
        fig.add_annotation(x=layer, y=name, text=str(number), showarrow=False, font=font)


def describe(table: pd.DataFrame) -> str:
    """One sentence: how far the schedules reach."""
    by_schedule = table.groupby("schedule", sort=False)["kept"]
    spread = {
        str(name): (int(low), int(high))
        for name, low, high in zip(
            by_schedule.min().index, by_schedule.min(), by_schedule.max(), strict=True
        )
    }
    widest = max(spread, key=lambda name: spread[name][1] - spread[name][0])
    low, high = spread[widest]
    if low == high:
        return "Every schedule keeps as many experts in every layer."
    return (
        f"{len(spread)} schedules spend one budget; {widest} differs most between layers, from "
        f"{low} to {high} experts kept."
    )
