"""The context of a page: all that its controls say, once they are drawn, and the plan of it."""

from dataclasses import replace

import streamlit as st

from analysis.criteria import get_criterion
from analysis.errors import UserError
from app.charts.context import Context
from app.frame.controls import (
    baseline_control,
    control_row,
    criterion_controls,
    formula_part,
    gate_control,
)
from app.frame.sidebar import model_and_calibration
from app.parts.compare.recipes import recipe_controls
from app.parts.plan.controls import plan_controls
from app.parts.plan_bar import no_plan, plan_line
from app.session.granularity import (
    chosen_neuron_criterion,
    is_about_neurons,
    neuron_criterion_controls,
)
from app.session.plan_data import current_plan
from app.session.state import chosen_criterion, page_context


def chosen_context(page: str) -> tuple[Context, str]:
    """Draw the plan and its controls, the same on every page; what they say, or why none is made.

    In the entry script and not on the pages: a widget of a page is another one on the next page,
    and neither its value nor its part of the address would come along. Those that a page is about
    stand on it, the others are folded: a closed popover would take them out of the address.

    Raises:
        UserError: no model, or one that cannot be used.
    """
    bar, front = st.container(key="plan-bar"), control_row()
    is_front = page in ("explore", "compare", "plan")
    with st.expander("More of the plan" if is_front else "Change the plan", type="compact"):
        rare = control_row()
    sidebar = model_and_calibration(page)
    neurons = is_about_neurons()
    with front if page == "explore" or (neurons and page == "plan") else rare:
        neuron_criterion_controls() if neurons else criterion_controls()
    if not neurons:
        with front if page in ("explore", "compare") else rare:
            baseline_control()
            formula_part()
        with rare:
            gate_control()
    context = page_context(*sidebar, chosen_criterion())
    choice = plan_controls(context, front if page == "plan" else rare, rare)
    context = replace(context, plan=choice)
    if neurons:
        context = replace(context, criterion=get_criterion(chosen_neuron_criterion()))
    elif page == "compare" and context.criterion is not None:
        with front:
            context = replace(context, recipes=recipe_controls(context))
    with bar:
        try:
            context = replace(context, shown=current_plan(context))
        except UserError as error:
            no_plan(error)
            return context, str(error)
        plan_line(context)
    return context, ""
