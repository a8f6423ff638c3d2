"""Plan: where the budget goes, layer by layer, and what that saves."""

import streamlit as st

from app.parts.plan.experts import (
    editor_part,
    engines_part,
    import_banner,
    metrics,
    notes_part,
    refusal_part,
    sides_part,
    sizes_part,
    table_part,
    take_away_part,
)
from app.parts.plan.neuron_page import neuron_plan_page
from app.parts.plan.search import search_part
from app.session.granularity import is_about_neurons
from app.session.plan_data import prepared, schedules_beside, shown_plan, sizes_of
from app.session.state import View
from pruning.planning.planning import PlanChoice
from pruning.search.store import SEARCH


def expert_plan_page(view: View, choice: PlanChoice) -> None:
    """The Plan page where whole experts are chosen."""
    shown = shown_plan(view, choice)
    ready = prepared(view) if shown is not None or choice.schedule == SEARCH else None
    if shown is None:
        if ready is not None:
            with st.container(border=True):
                search_part(view, choice, ready)
        return
    beside = None if ready is None else schedules_beside(view, choice, ready)
    report = sizes_of(view, shown.plan)
    import_banner(shown)
    metrics(view, shown, report)
    with st.container(border=True):
        editor_part(view, choice, shown, beside)
        notes_part(shown)
        engines_part(view, shown)
    if ready is not None:
        with st.container(border=True):
            search_part(view, choice, ready)
    if beside is not None:
        with st.container(border=True):
            sides_part(view, choice, beside)
    left, right = st.columns([8, 7])  # all columns of the table, in a window of 1280 px
    with left, st.container(border=True):
        table_part(view, choice, shown, beside)
    with right, st.container(border=True):
        sizes_part(view, report)
    with st.container(border=True):
        take_away_part(view, shown)


view: View = st.session_state["view"]
refusal_part()
if is_about_neurons():
    neuron_plan_page(view, st.session_state["neuron_choice"])
else:
    expert_plan_page(view, st.session_state["plan_choice"])
