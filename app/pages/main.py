"""Entry script of the dashboard: navigation, the controls of the plan, and the page."""

from pathlib import Path

import streamlit as st

from app.charts.theme import ink, muted, paper, primary
from app.components.assets import keep_focus, keep_history
from app.pages.listing import PAGES
from app.session.chosen_expert import chosen_expert, expert_control
from app.session.state import asked_page, carry_over, is_about_neurons
from app.widgets.charts import charts_at_end
from app.widgets.chosen_plan import chosen_plan
from app.widgets.expert import link_to_expert
from app.widgets.expert_card import expert_card, has_card
from app.widgets.links import FIRST, go_to, page_at
from app.widgets.login import log_out_part, require_login
from app.widgets.notes import in_a_sentence
from app.widgets.palette import palette_part
from app.widgets.report import report_part

# Pages with a map of the experts, beside which stands the card of the chosen one.
_WITH_MAPS = ("explore", "compare")


def apply_page_style() -> None:
    """Set the colours of the browser's theme, which `app/static/page.css` names."""
    dark = st.context.theme.type == "dark"
    colors = f"--page: {paper(dark)}; --ink: {ink(dark)}; --mark: {primary(dark)};"
    colors += f"--faint: {muted(dark)};"
    st.html(f"<style>:root {{ {colors} }}</style>")


def draw_page() -> None:
    """The page of this run; Streamlit calls it without an argument."""
    entry.draw(loaded)
    charts_at_end(page.url_path or FIRST, loaded, no_plan)


st.set_page_config(
    # Our own icon: Streamlit would fetch a material icon from the internet.
    page_icon=str(Path(__file__).parents[1] / "static" / "favicon.png"),
    layout="wide",
    initial_sidebar_state="collapsed",
)
apply_page_style()
require_login()
pages = [
    page_at(name, draw_page, f":material/{page.icon}:", is_listed=page.is_listed)
    for name, page in PAGES.items()
]
pages.append(page_at(FIRST, draw_page, is_bare=False, is_listed=False))  # as links may spell it
page = st.navigation(pages, position="top")
st.set_page_config(page_title=f"{page.title} - MoE Prune Studio")
entry = PAGES[page.url_path or FIRST]
header = st.container(horizontal=True, key="header-actions")
heading = st.empty()
carry_over(page.url_path)
chosen = None
with in_a_sentence():
    chosen = chosen_plan(page.url_path)
if entry.heading:  # after the controls, which say what is removed
    what = "neurons" if is_about_neurons() else "experts"
    heading.title(entry.heading.replace("experts", what), anchor=False)
if chosen is None:
    st.stop()
loaded, no_plan = chosen
with st.sidebar:
    expert_control(loaded.model.layers)
# After its control is drawn: only then is it set from the URL.
loaded = loaded.choosing(expert=chosen_expert(loaded.model.layers))
beside = st.empty()  # also without an expert: what follows keeps its place
if loaded.choices.expert is not None and page.url_path not in ("expert", "story"):
    if page.url_path in _WITH_MAPS and has_card(loaded):
        expert_card(loaded, beside)
    else:
        with beside.container(key="chosen-expert"):
            link_to_expert(loaded.choices.expert, "chosen")
opens = asked_page()
try:
    with in_a_sentence(no_plan):
        if not opens:
            page.run()
finally:  # also where a page stops early
    with in_a_sentence(), header:
        report_part(loaded, page.url_path or FIRST)
    with header:
        palette_part(loaded, {name: name.capitalize() for name in PAGES})
    with st.sidebar:
        log_out_part()
        keep_history()
if opens in PAGES:
    go_to(page_at(opens))
keep_focus()
