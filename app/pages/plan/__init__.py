"""Plan: the budget per layer, and what it saves."""

import streamlit as st

from app.charts import neuron_cut
from app.charts.schedules import sides
from app.loaded import CurrentPlan, Loaded
from app.pages.plan.experts import (
    editor_part,
    engines_part,
    files_part,
    notes_part,
    plan_metrics,
    sides_part,
    table_part,
)
from app.pages.plan.search import search_part
from app.pages.plan.sensitivity import sensitivity_form, sensitivity_part
from app.session.plan_data import lacks_statistics, neuron_sizes, prepared
from app.session.plan_state import NoPlan
from app.widgets.charts import show_named
from app.widgets.job_form import neurons_missing_part
from app.widgets.neuron_sizes import neuron_layers_part, neuron_metrics, width_modes_part
from app.widgets.notes import refusal_part
from app.widgets.plan_bar import quality_warning
from app.widgets.repair import repair_part
from pruning.plan.plan import changes_nothing
from pruning.planning.ranking import Ranking


def draw(loaded: Loaded) -> None:
    """The page."""
    refusal_part()
    quality_warning(loaded)
    if loaded.choices.spec.by_neuron:
        _plan_of_neurons(loaded)
    else:
        _plan_of_experts(loaded)


def _plan_of_experts(loaded: Loaded) -> None:
    current, ready = loaded.shown, _statistics(loaded)
    if current is None:
        if ready is not None and loaded.choices.search is not None:
            with st.container(border=True):
                search_part(loaded, ready)
        elif ready is not None and loaded.choices.spec.spread.is_measured:
            with st.container(border=True):
                sensitivity_form(loaded)
        return
    schedules = None if ready is None else sides(loaded)
    editor_part(loaded, current, schedules)
    notes_part(loaded, current)
    plan_metrics(loaded, current, loaded.study.sizes(current.plan))
    with st.container(border=True):
        engines_part(loaded, current)
        sensitivity_part(loaded)
    _repair_part(loaded, current)
    if ready is not None:
        with st.container(border=True):
            search_part(loaded, ready)
    if schedules is not None:
        with st.container(border=True):
            sides_part(loaded, schedules)
    # All columns of the table, in a window of 1280 px.
    table_column, sizes_column = st.columns([8, 7])
    with table_column, st.container(border=True):
        table_part(loaded, current, schedules)
    with sizes_column, st.container(border=True):
        st.markdown("**What it saves**: weights by part, before and after.")
        show_named("sizes", loaded)
    with st.container(border=True):
        files_part(loaded, current)


def _repair_part(loaded: Loaded, current: CurrentPlan) -> None:
    """The repair of the plan, with its jobs."""
    if not changes_nothing(current.plan, loaded.model):
        with st.container(border=True):
            repair_part(loaded, current, with_jobs=True)


def _statistics(loaded: Loaded) -> Ranking | None:
    """The statistics that rank; None if there are none, as for a plan from a file."""
    try:
        return prepared(loaded)
    except NoPlan:
        return None


def _plan_of_neurons(loaded: Loaded) -> None:
    if (current_plan := loaded.shown) is None:
        if lacks_statistics(loaded):
            neurons_missing_part(loaded)
        elif loaded.choices.spec.spread.is_measured:
            with st.container(border=True):
                sensitivity_form(loaded)
        return
    sizes = neuron_sizes(loaded, current_plan)
    neuron_metrics(loaded, sizes)
    if not current_plan.file:
        _figures_part(loaded)
        with st.container(border=True):
            sensitivity_part(loaded)
    with st.container(border=True):
        width_modes_part(loaded, sizes)
        notes_part(loaded, current_plan)
    _repair_part(loaded, current_plan)
    with st.container(border=True):
        neuron_layers_part(sizes)
    with st.container(border=True):
        files_part(loaded, current_plan)


def _figures_part(loaded: Loaded) -> None:
    """Sparsity per layer and FLOPs saved, for every scope."""
    scopes = neuron_cut.scopes(loaded)
    layers_column, flops_column = st.columns(2)
    if not scopes.layers.empty:
        with layers_column, st.container(border=True):
            st.markdown("**Sparsity per layer** on this budget, by scope of competition.")
            show_named("neuron-layers", loaded)
        with flops_column, st.container(border=True):
            st.markdown(
                "**Compute saved** as sparsity grows: below the dotted line, rarely chosen "
                "experts lose most."
            )
            show_named("neuron-flops", loaded)
    for scope, why in scopes.refused.items():
        st.text(f"{scope} is not possible: {why}")
