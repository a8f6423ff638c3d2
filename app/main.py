"""Entry of the dashboard: navigation, and the controls that all pages share."""

from pathlib import Path

import streamlit as st

from analysis.errors import UserError
from app.components.history import keep_history
from app.frame.controls import criterion_controls
from app.frame.login import log_out_part, require_login
from app.frame.page_style import apply_page_style
from app.frame.presentation import go_to, is_presented, presentation_control, stage
from app.frame.sidebar import copy_link, expert_in_sidebar, model_and_calibration
from app.frame.tour import is_on_tour, show_tour, tour_button
from app.literal import literal
from app.parts.compare.recipes import recipe_controls
from app.parts.evaluate.own_plan import remember_view
from app.parts.explore.one_expert import expert_drawer
from app.parts.plan.controls import plan_controls
from app.parts.plan.neuron_controls import neuron_plan_controls
from app.parts.report import remember_recipes, report_part
from app.session.granularity import (
    granularity_control,
    is_about_neurons,
    neuron_criterion_controls,
    with_neurons,
)

HERE = Path(__file__).parent
HEADINGS = {
    "": "Understand your experts before you remove them",
    "explore": "Which experts does each criterion keep?",
    "compare": "Where do two recipes disagree?",
    "plan": "Where should the budget go?",
    "evaluate": "What is lost, what is saved?",
    "export": "Is this the checkpoint to ship?",
}

st.set_page_config(
    page_title="MoE Prune Studio",
    # An icon of our own: Streamlit would fetch a page's material icon from the internet.
    page_icon=str(HERE / "static" / "favicon.png"),
    layout="wide",
)
apply_page_style()
require_login()
pages = [
    st.Page(HERE / "views" / "start.py", title="Start", icon=":material/home:", default=True),
    st.Page(HERE / "views" / "explore.py", title="Explore", icon=":material/grid_on:"),
    st.Page(HERE / "views" / "compare.py", title="Compare", icon=":material/compare_arrows:"),
    st.Page(HERE / "views" / "plan.py", title="Plan", icon=":material/tune:"),
    st.Page(HERE / "views" / "evaluate.py", title="Evaluate", icon=":material/insights:"),
    st.Page(HERE / "views" / "export.py", title="Export", icon=":material/output:"),
]
page = st.navigation(pages, position="hidden" if is_presented() else "top")
wanted = stage(pages, page)
st.title(HEADINGS[page.url_path])
try:
    if page.url_path in ("explore", "plan", "export"):
        granularity_control()  # first, for the sidebar asks what it says
    view = model_and_calibration(recipe=page.url_path not in ("compare", "evaluate"))
    if page.url_path in ("explore", "plan", "export"):
        # Here and not on the pages: a widget of a page is another one on the next page, and
        # neither its value nor its part of the address would come along.
        if is_about_neurons():
            if page.url_path == "explore":
                with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
                    neuron_criterion_controls()
            else:
                st.session_state["neuron_choice"] = neuron_plan_controls(view)
            view = with_neurons(view)
        else:
            view = criterion_controls(view, baseline=page.url_path == "explore")
    if page.url_path in ("plan", "export") and not is_about_neurons():
        st.session_state["plan_choice"] = plan_controls(view)
    if page.url_path == "compare":
        st.session_state["recipes"] = recipe_controls(view)
    wants_numbers = expert_in_sidebar(view.model)
except UserError as error:
    st.error(literal(error), icon=":material/error:")
    st.stop()
st.session_state["view"] = view
if page.url_path not in ("compare", "evaluate"):
    remember_view(view)
remember_recipes(view, page.url_path)
try:
    page.run()
    if wants_numbers and not is_on_tour():
        expert_drawer(view)
except UserError as error:
    st.error(literal(error), icon=":material/error:")
finally:  # also where a page stops early
    report_part(view, page.url_path)
    copy_link()
    with st.sidebar:
        tour_button()
        presentation_control()
        log_out_part()
        keep_history()
if wanted is not None:
    go_to(wanted)
show_tour(page.url_path)
