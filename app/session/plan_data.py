"""What the Plan and Export pages compute, cached by what it depends on."""

from collections.abc import Mapping
from dataclasses import replace

import streamlit as st

from analysis.errors import UserError
from app.charts.context import RANKS_NOTHING, Context
from app.charts.schedules import selection_of, spending_of
from app.session.needed import what_is_missing
from app.session.plan_state import imported_plan, note_plan
from app.session.search_data import searched_plan
from pruning.allocation import Allocation
from pruning.plan import PruningPlan
from pruning.planning.make import make_plan
from pruning.planning.planning import (
    CurrentPlan,
    PlanChoice,
    counts_in,
    hand_counts,
    plan_request,
)
from pruning.planning.ranking import FREQUENCY, Selection
from pruning.schedules import Spending, budget_notes
from pruning.search.store import SEARCH
from pruning.sizes import SizeReport, size_report


def prepared(context: Context) -> Selection | None:
    """The statistics of the context; None after saying what is missing."""
    if context.criterion is None:
        st.info(RANKS_NOTHING, icon=":material/info:")
        return None
    missing = what_is_missing(context, context.criterion)
    if missing is not None:
        st.info(missing, icon=":material/info:")
        return None
    return selection_of(context)


def shown_plan(context: Context) -> CurrentPlan | None:
    """The plan that the controls, or an imported file, ask for; None after saying what is missing.

    The Evaluate page remembers it, see `noted_plan`.
    """
    choice, imported = context.plan, imported_plan(context.model)
    if imported is not None:
        shown: CurrentPlan | None = CurrentPlan(imported.plan, file=imported.file)
    elif choice.schedule == SEARCH:
        shown = searched_plan(context, choice)
    else:
        shown = made_plan(context, choice)
    if shown is not None:
        note_plan(shown)
    return shown


def made_plan(context: Context, choice: PlanChoice) -> CurrentPlan | None:
    """The plan of a context's criterion under a schedule or by hand; None where it cannot rank."""
    ready = prepared(context)
    if ready is None or context.criterion is None:
        return None
    spending = spending_of(context, choice)
    kept = hand_counts(choice, spending) if choice.by_hand else None
    if choice.schedule == FREQUENCY and ready.tokens is None:
        raise UserError(
            "The frequency schedule counts routed tokens, and there is no calibration yet; start "
            "one on the Start page."
        )
    request = plan_request(context.request_by(context.criterion), choice, kept)
    if choice.schedule == FREQUENCY:
        request = request.model_copy(update={"corpora": context.corpora})
    made = context.keep(make_plan, ready, request)
    selection = replace(ready, request=request)
    if kept is not None:
        return CurrentPlan(made.plan, _hand_notes(choice, spending, kept), selection)
    keep = tuple(len(made.plan.kept[layer.index]) for layer in spending.layers)
    allocation = Allocation(spending.layers, keep)
    notes = budget_notes(request.schedule, spending, allocation, ready.evidence)
    return CurrentPlan(made.plan, notes, selection)


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


def sizes_of(context: Context, plan: PruningPlan) -> SizeReport:
    """Sizes before and after a plan."""
    return context.keep(size_report, context.model, plan)
