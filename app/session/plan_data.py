"""What the Plan and Export pages compute, cached by what it depends on."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from analysis.errors import UserError
from app.charts.chart import Drawing
from app.charts.context import Context
from app.session.data import settings, weight_run
from app.session.needed import what_is_missing
from app.session.plan_state import imported_plan, note_plan
from app.session.search_data import searched_plan, searches_of
from pruning.allocation import Allocation
from pruning.budget import sparsity_budget
from pruning.plan import PruningPlan
from pruning.planning.make import Decision, make_plan
from pruning.planning.planning import (
    PlanChoice,
    Shown,
    counts_in,
    hand_counts,
    plan_request,
    schedules_table,
    searched_rows,
)
from pruning.planning.ranking import FREQUENCY, Selection, select
from pruning.requests.plan import PlanRequest
from pruning.schedules import Spending, budget_notes
from pruning.search.store import SEARCH, order_digest
from pruning.sizes import SizeReport, size_report


@dataclass(frozen=True, eq=False)
class Prepared:
    """What every schedule of one context needs.

    Args:
        selection: criterion and statistics; its request names no schedule.
        order: see `order_digest`.
    """

    selection: Selection
    order: str


def spending_of_choice(context: Context, choice: PlanChoice) -> Spending:
    """Budget and constraints, without what is set by hand.

    Raises:
        PlanError: constraints that cannot be read.
    """
    layers = context.model.layers
    return Spending(layers, sparsity_budget(layers, context.sparsity), choice.constraints())


def prepared(context: Context) -> Prepared | None:
    """The statistics of the context; None after saying what is missing.

    Raises:
        UserError: statistics that cannot be read.
    """
    if context.criterion is None:
        st.info(
            "The variant (1, 0, 0) ranks nothing; choose other exponents.", icon=":material/info:"
        )
        return None
    missing = what_is_missing(context, context.criterion)
    if missing is not None:
        st.info(missing, icon=":material/info:")
        return None
    base = context.request_by(context.criterion)
    if context.criterion.source != "routed" and context.corpora:
        # So that the frequency schedule has its numbers as well.
        base = base.model_copy(update={"schedule": FREQUENCY, "corpora": context.corpora})
    runs = [run.manifest.digest for run in context.runs.values()]
    weights = weight_run(context.model)
    runs += [weights.manifest.digest] if weights else []
    return _prepared(base.model_dump_json(), tuple(runs), context.model.identity, context, base)


@st.cache_resource(max_entries=16)
def _prepared(
    request: str, runs: tuple[str, ...], model: str, _context: Context, _base: PlanRequest
) -> Prepared:
    del request, runs, model  # parts of the key only
    selection = select(_base, _context.model, settings().store)
    return Prepared(selection, order_digest(selection.table))


def shown_plan(context: Context, choice: PlanChoice) -> Shown | None:
    """The plan that the controls, or an imported file, ask for; None after saying what is missing.

    The Evaluate page remembers it, see `noted_plan`.

    Raises:
        UserError: the budget cannot be met under the constraints.
    """
    imported = imported_plan(context.model)
    if imported is not None:
        shown: Shown | None = Shown(imported.plan, file=imported.file)
    elif choice.schedule == SEARCH:
        shown = searched_plan(context, choice)
    else:
        shown = made_plan(context, choice)
    if shown is not None:
        note_plan(shown)
    return shown


def made_plan(context: Context, choice: PlanChoice) -> Shown | None:
    """The plan of a context's criterion under a schedule or by hand; None after saying what lacks.

    Raises:
        UserError: the budget cannot be met under the constraints.
    """
    ready = prepared(context)
    if ready is None or context.criterion is None:
        return None
    spending = spending_of_choice(context, choice)
    kept = hand_counts(choice, spending) if choice.by_hand else None
    if choice.schedule == FREQUENCY and ready.selection.tokens is None:
        raise UserError(
            "The frequency schedule counts routed tokens, and there is no calibration yet; start "
            "one on the Start page."
        )
    request = plan_request(context.request_by(context.criterion), choice, kept)
    if choice.schedule == FREQUENCY:
        request = request.model_copy(update={"corpora": context.corpora})
    made = _decided(request.model_dump_json(), _key(ready), request, ready.selection)
    selection = replace(ready.selection, request=request)
    if kept is not None:
        return Shown(made.plan, _hand_notes(choice, spending, kept), selection)
    keep = tuple(len(made.plan.kept[layer.index]) for layer in spending.layers)
    allocation = Allocation(spending.layers, keep)
    notes = budget_notes(request.schedule, spending, allocation, ready.selection.evidence)
    return Shown(made.plan, notes, selection)


def _hand_notes(choice: PlanChoice, spending: Spending, kept: Mapping[int, int]) -> tuple[str, ...]:
    """What was done to counts that another budget or other rules had been spent on."""
    # To the library every count by hand is a bound, so its own notes would only say that.
    asked = counts_in(choice.counts, spending.layers)
    if asked == kept:
        return ()
    return (
        f"The counts by hand keep {sum(asked.values())} experts; the sparsity and the rules above "
        f"ask for {sum(kept.values())}, so "
        f"{sum(asked[layer] != kept[layer] for layer in kept)} layers were moved.",
    )


def _key(ready: Prepared) -> str:
    made = ready.selection
    read = [made.choice, *([made.tokens] if made.tokens else [])]
    runs = [run.manifest.digest for choice in read for run in choice.runs]
    return " ".join((made.model.identity, *runs))


@st.cache_resource(max_entries=32)
def _decided(key: str, statistics: str, _request: PlanRequest, _selection: Selection) -> Decision:
    del key, statistics  # parts of the key only
    return make_plan(_selection, _request)


@dataclass(frozen=True, eq=False)
class Beside:
    """All schedules on the budget of a context, see `schedules_table`; `key` says which."""

    key: str
    table: pd.DataFrame
    counts: pd.DataFrame
    refused: dict[str, str]

    def kept_by(self, schedule: str) -> dict[int, int] | None:
        """Layer -> experts kept by a schedule; None where it is not possible."""
        rows = self.counts[self.counts["schedule"] == schedule]
        if rows.empty:
            return None
        return dict(zip(rows["layer"].tolist(), rows["kept"].tolist(), strict=True))


def schedules_beside(context: Context, choice: PlanChoice, ready: Prepared) -> Beside:
    """Every schedule on the budget and under the constraints of the context."""
    spending = spending_of_choice(context, choice)
    known = searches_of(context.model).known
    searched = searched_rows(known, spending.budget.total, ready.order)
    asked = (ready.selection.request.model_dump_json(), _key(ready), context.sparsity)
    made = (str(choice.multiple_of), choice.protect, searched.to_json())
    return _beside(" ".join((*asked, *made)), ready, spending, searched)


@st.cache_resource(max_entries=16)
def _beside(key: str, _ready: Prepared, _spending: Spending, _searched: pd.DataFrame) -> Beside:
    made = schedules_table(_ready.selection, _spending, _searched)
    return Beside(key, *made)


@st.cache_resource(max_entries=32)
def drawn_once(key: str, dark: bool, _chart: Drawing) -> go.Figure:
    """The figure of a chart, which `key` names with all that it shows."""
    del key  # part of the cache's key only
    return _chart.figure(dark)


def sizes_of(context: Context, plan: PruningPlan) -> SizeReport:
    """Sizes before and after a plan."""
    return _sizes(context.model.identity, plan.digest, context, plan)


@st.cache_resource(max_entries=64)
def _sizes(model: str, digest: str, _context: Context, _plan: PruningPlan) -> SizeReport:
    del model, digest  # parts of the key only
    return size_report(_context.model, _plan)
