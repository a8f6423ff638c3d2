"""The sidebar's way to take a page away: its figures as one HTML file, and the command for it."""

import streamlit as st

from app.parts.compare.recipes import RecipeChoice, recipe_request
from app.plots.listing import VIEWS
from app.plots.scene import Scene
from app.report.contents import report_of, views_of
from app.report.page import report_html
from app.session.data import settings
from app.session.granularity import is_about_neurons, is_widest_scope
from app.session.state import RECIPES, View, chosen_baseline, shown_recipes
from pruning.plan import ATOMIC_GRANULARITY, EXPERT_GRANULARITY
from pruning.planning.comparing import CompareRequest
from pruning.planning.neuron_plan import NeuronPlanChoice


def remember_recipes(view: View, page: str) -> None:
    """Note which two recipes the page is about, for its figures' command lines and its report."""
    st.session_state[RECIPES] = _recipes(view, page)


def _recipes(view: View, page: str) -> CompareRequest | None:
    if page == "compare":
        choices: tuple[RecipeChoice, RecipeChoice] = st.session_state["recipes"]
        first, second = (recipe_request(view, choice) for choice in choices)
        return CompareRequest(first, second)
    if view.criterion is None or page not in {each.page for each in VIEWS.values()}:
        return None
    if page in ("plan", "export") and is_about_neurons():
        choice: NeuronPlanChoice = st.session_state["neuron_choice"]
        if not choice.is_plain:
            return None  # recipes of figures have neither constraints nor other budgets
    if page == "explore" and is_about_neurons() and not is_widest_scope():
        return None  # nor have they a scope
    # Views of overlap have a gate convention whatever criterion is in use.
    gate = {"gate": view.gate}
    return CompareRequest(
        view.request(view.criterion).model_copy(update=gate),
        view.request(chosen_baseline()).model_copy(update=gate),
    )


def report_part(view: View, page: str) -> None:
    """A page's figures as one HTML file; drawn in the sidebar, where the page has figures."""
    recipes = shown_recipes()
    wanted = ATOMIC_GRANULARITY if is_about_neurons() else EXPERT_GRANULARITY
    names = [
        name for name, each in VIEWS.items() if (each.page, each.granularity) == (page, wanted)
    ]
    if recipes is None or not names:
        return
    scene = Scene(recipes, view.model, settings().store)
    with st.sidebar, st.popover("Report", icon=":material/description:", width="stretch"):
        st.text(
            "The figures of this page in one HTML file: with what they say, their numbers and what "
            "made them. It opens offline and prints."
        )
        st.download_button(
            "Download the report",
            # Made on the click, in a thread without a session: from values, not from controls.
            lambda: report_html(report_of(scene, views_of(names))),
            file_name=f"{view.model.name}-{page}.html",
            mime="text/html",
            key="report",
            on_click="ignore",
            icon=":material/download:",
        )
        st.code(recipes.report_command(names, "report.html"), language=None, wrap_lines=True)
