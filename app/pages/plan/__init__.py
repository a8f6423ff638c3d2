"""Plan: the budget per layer, and what it saves."""

import streamlit as st

from app.charts import neuron_cut
from app.charts.context import Context
from app.charts.schedules import sides
from app.pages.plan.experts import (
    editor_part,
    engines_part,
    files_part,
    notes_part,
    plan_metrics,
    sides_part,
    sizes_part,
    table_part,
    unmeasured_part,
)
from app.pages.plan.search import search_part
from app.pages.plan.sensitivity import sensitivity_form, sensitivity_part
from app.session.plan_data import lacks_statistics, neuron_sizes, prepared, sizes_of
from app.session.plan_state import NoPlan
from app.widgets.charts import show_named
from app.widgets.job_form import neurons_missing_part
from app.widgets.links import link_to
from app.widgets.neuron_sizes import neuron_layers_part, neuron_metrics, width_modes_part
from app.widgets.refusals import refusal_part
from pruning.planning.ranking import Selection
from pruning.schedules import MEASURED
from pruning.search.store import SEARCH


def draw(context: Context) -> None:
    """The page."""
    refusal_part()
    if context.by_neuron:
        _plan_of_neurons(context)
    else:
        _plan_of_experts(context)


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


def _plan_of_neurons(context: Context) -> None:
    if (current_plan := context.shown) is None:
        if lacks_statistics(context):
            neurons_missing_part(context)
        elif context.spec.spread.is_measured:
            with st.container(border=True):
                sensitivity_form(context)
        return
    sizes = neuron_sizes(context, current_plan)
    neuron_metrics(context, sizes)
    with st.container(border=True):
        width_modes_part(context, sizes)
        notes_part(context, current_plan)
        unmeasured_part(context)
        link_to("evaluate", "Evaluate this plan", "insights")
    if not current_plan.file:
        _figures_part(context)
        with st.container(border=True):
            sensitivity_part(context)
    with st.container(border=True):
        neuron_layers_part(sizes)
    with st.container(border=True):
        files_part(context, current_plan)


def _figures_part(context: Context) -> None:
    """Sparsity per layer and FLOPs saved, for every scope."""
    scopes = neuron_cut.scopes(context)
    layers_column, flops_column = st.columns(2)
    if not scopes.layers.empty:
        with layers_column, st.container(border=True):
            st.markdown("**Sparsity per layer** on this budget, by scope of competition.")
            show_named("neuron-layers", context)
        with flops_column, st.container(border=True):
            st.markdown(
                "**Compute saved** as sparsity grows: below the dotted line, rarely chosen "
                "experts lose most."
            )
            show_named("neuron-flops", context)
    for scope, why in scopes.refused.items():
        st.text(f"{scope} is not possible: {why}")
