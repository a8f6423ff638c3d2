"""Entry script of the dashboard: navigation and shared controls."""

from dataclasses import replace
from pathlib import Path

import streamlit as st

from app.components.history import keep_history
from app.frame.login import log_out_part, require_login
from app.frame.page_style import apply_page_style
from app.frame.presentation import go_to, is_presented, presentation_control, stage
from app.frame.refusals import in_a_sentence
from app.frame.sidebar import copy_link
from app.frame.tour import show_tour, tour_button
from app.parts.context import chosen_context
from app.parts.explore.expert import expert_drawer
from app.parts.report import report_part
from app.session.chosen_expert import chosen_expert, expert_control
from app.session.state import keep_in_address

HERE = Path(__file__).parent
# Page file -> icon and heading; the bare URL opens the first.
PAGES = {
    "start": ("home", "What does pruning save, and what does it cost?"),
    "explore": ("grid_on", "Which experts does each criterion keep?"),
    "compare": ("compare_arrows", "Where do two recipes disagree?"),
    "plan": ("tune", "Where should the budget go?"),
    "evaluate": ("insights", "What is lost, what is saved?"),
    "export": ("output", "Is this the checkpoint to ship?"),
}

st.set_page_config(
    page_title="MoE Prune Studio",
    # Our own icon: Streamlit would fetch a material icon from the internet.
    page_icon=str(HERE / "static" / "favicon.png"),
    layout="wide",
)
apply_page_style()
require_login()
pages = [
    st.Page(
        HERE / "views" / f"{name}.py",
        title=name.capitalize(),
        icon=f":material/{icon}:",
        default=name == "start",
    )
    for name, (icon, _) in PAGES.items()
]
page = st.navigation(pages, position="hidden" if is_presented() else "top")
wanted = stage(pages, page)
st.title(PAGES[page.url_path or "start"][1])
keep_in_address(page.url_path)
context = None
with in_a_sentence():
    context, no_plan = chosen_context(page.url_path)
    with st.sidebar:
        wants_numbers = expert_control(context.model.layers)
    # After its control is drawn: only then is it set from the URL.
    context = replace(context, expert=chosen_expert(context.model.layers))
if context is None:
    st.stop()
st.session_state["context"] = context
try:
    with in_a_sentence(no_plan):
        page.run()
        if wants_numbers:
            expert_drawer(context)
finally:  # also where a page stops early
    with in_a_sentence():
        report_part(st.session_state["context"], page.url_path)
    copy_link()
    with st.sidebar:
        tour_button()
        presentation_control()
        log_out_part()
        keep_history()
if wanted is not None:
    go_to(wanted)
show_tour(page.url_path)
