"""Plan: the budget per layer, and what it saves."""

import streamlit as st

from app.charts.context import Context
from app.charts.schedules import sides
from app.parts.context import draw_page
from app.parts.plan.experts import (
    editor_part,
    engines_part,
    files_part,
    notes_part,
    plan_metrics,
    refusal_part,
    sides_part,
    sizes_part,
    table_part,
)
from app.parts.plan.neurons import neuron_plan_page
from app.parts.plan.search import search_part
from app.parts.plan.sensitivity import sensitivity_form, sensitivity_part
from app.session.plan_data import prepared, sizes_of
from app.session.plan_state import NoPlan
from pruning.planning.ranking import Selection
from pruning.schedules import MEASURED
from pruning.search.store import SEARCH


def plan_page(context: Context) -> Context:
    """The page."""
    refusal_part()
    if context.by_neuron:
        neuron_plan_page(context)
    else:
        _plan_of_experts(context)
    return context


def _plan_of_experts(context: Context) -> None:
    current, ready = context.shown, _statistics(context)
    if current is None:
        if ready is not None and context.schedule.name == SEARCH:
            with st.container(border=True):
                search_part(context, ready)
        elif ready is not None and context.schedule.name == MEASURED:
            with st.container(border=True):
                sensitivity_form(context)
        return
    schedules = None if ready is None else sides(context)
    plan_metrics(context, current, sizes_of(context, current.plan))
    with st.container(border=True):
        editor_part(context, current, schedules)
        notes_part(context, current)
        engines_part(context, current)
        sensitivity_part(context)
    if ready is not None:
        with st.container(border=True):
            search_part(context, ready)
    if schedules is not None:
        with st.container(border=True):
            sides_part(context, schedules)
    # All columns of the table, in a window of 1280 px.
    table_column, sizes_column = st.columns([8, 7])
    with table_column, st.container(border=True):
        table_part(context, current, schedules)
    with sizes_column, st.container(border=True):
        sizes_part(context)
    with st.container(border=True):
        files_part(context, current)


def _statistics(context: Context) -> Selection | None:
    """The statistics that rank; None if there are none, as for a plan from a file."""
    try:
        return prepared(context)
    except NoPlan:
        return None


draw_page(plan_page)
