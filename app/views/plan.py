"""Plan: where the budget goes, layer by layer, and what that saves."""

from dataclasses import replace

import streamlit as st

from app.charts.context import Context
from app.charts.schedules import sides
from app.frame.pages import draw_page
from app.parts.plan.experts import (
    editor_part,
    engines_part,
    files_part,
    import_banner,
    metrics,
    notes_part,
    refusal_part,
    sides_part,
    sizes_part,
    table_part,
)
from app.parts.plan.neurons import neuron_plan_page
from app.parts.plan.search import search_part
from app.session.plan_data import prepared, shown_plan, sizes_of
from pruning.search.store import SEARCH


def plan(context: Context) -> Context:
    """The page."""
    refusal_part()
    if context.plan.is_atomic:
        neuron_plan_page(context)
        return context
    return _plan_of_experts(context)


def _plan_of_experts(context: Context) -> Context:
    shown, searched = shown_plan(context), context.plan.schedule == SEARCH
    ready = prepared(context) if shown is not None or searched else None
    if shown is None:
        if ready is not None:
            with st.container(border=True):
                search_part(context, ready)
        return context
    context = replace(context, shown=shown)
    beside = None if ready is None else sides(context)
    import_banner(shown)
    metrics(context, shown, sizes_of(context, shown.plan))
    with st.container(border=True):
        editor_part(context, shown, beside)
        notes_part(shown)
        engines_part(context, shown)
    if ready is not None:
        with st.container(border=True):
            search_part(context, ready)
    if beside is not None:
        with st.container(border=True):
            sides_part(context, beside)
    left, right = st.columns([8, 7])  # all columns of the table, in a window of 1280 px
    with left, st.container(border=True):
        table_part(context, shown, beside)
    with right, st.container(border=True):
        sizes_part(context)
    with st.container(border=True):
        files_part(context, shown)
    return context


draw_page(plan)
