"""The context of a page: all that its controls say, once they are drawn."""

from dataclasses import replace

import streamlit as st

from analysis.criteria import get_criterion
from app.charts.context import Context
from app.frame.controls import criterion_controls
from app.frame.sidebar import model_and_calibration
from app.parts.compare.recipes import recipe_controls
from app.parts.plan.controls import plan_controls
from app.session.granularity import (
    chosen_neuron_criterion,
    chosen_scope,
    granularity_control,
    is_about_neurons,
    neuron_criterion_controls,
)
from app.session.state import chosen_criterion, page_context
from pruning.plan import ATOMIC_GRANULARITY
from pruning.planning.choice import PlanChoice

# Pages on which whole experts or neurons are pruned.
_PRUNING = ("explore", "plan", "export")


def chosen_context(page: str) -> Context:
    """Draw the controls that a page shares with others; what they say.

    In the entry script and not on the pages: a widget of a page is another one on the next page,
    and neither its value nor its part of the address would come along.

    Raises:
        UserError: no model, or one that cannot be used.
    """
    if page in _PRUNING:
        granularity_control()  # first, for the sidebar asks what it says
    sidebar = model_and_calibration(recipe=page not in ("compare", "evaluate"))
    if page == "compare":
        context = page_context(*sidebar, chosen_criterion())
        return replace(context, recipes=recipe_controls(context))
    if page in _PRUNING and not is_about_neurons():
        criterion_controls(baseline=page == "explore")
    context = page_context(*sidebar, chosen_criterion())
    if page in ("plan", "export"):
        context = replace(context, plan=plan_controls(context))
    elif page == "explore" and is_about_neurons():
        with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
            neuron_criterion_controls()
        scope = chosen_scope(chosen_neuron_criterion())
        context = replace(context, plan=PlanChoice(ATOMIC_GRANULARITY, scope=scope))
    if context.plan.is_atomic:
        context = replace(context, criterion=get_criterion(chosen_neuron_criterion()))
    return context
