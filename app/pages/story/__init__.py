"""Story: five findings about the plan for an audience; each a sentence, a chart and a control."""

from collections.abc import Callable, Mapping
from typing import Final

import streamlit as st

from analysis.errors import UserError
from analysis.files.shipped import DEMO_MODEL
from app.literal import literal
from app.loaded import Loaded, loss_of_plan, loss_text
from app.pages.story.findings import (
    Finding,
    budget,
    corpora,
    criteria,
    saving,
    shipping,
    stratification,
)
from app.report.sentences import DEMO_NOTE, TITLES
from app.session.measured_plan import show_plan
from app.session.plan_data import bytes_after
from app.session.plan_state import forget_import
from app.session.state import page_before
from app.widgets.charts import large_chart
from app.widgets.controls import view_switch
from app.widgets.links import FIRST, link_to
from pruning.plan.sizes import format_bytes

# Value in the URL -> function, in the order of the story.
FINDINGS: Final[Mapping[str, Callable[[Loaded], Finding]]] = {
    "saves": saving,
    "criteria": criteria,
    "stratification": stratification,
    "corpora": corpora,
    "budget": budget,
    "ships": shipping,
}
_KEY: Final = "finding"
_OF_A_FILE: Final = "Story is of a plan of the controls, and this one is from a file."
# The controls of other pages are drawn and hidden: Streamlit drops the URL's values of others.
_STYLE: Final = """
[data-testid="stHeader"], [data-testid="stSidebar"], .st-key-plan-bar, .st-key-report-part {
  display: none !important;
}
.st-key-header-actions { --header-actions: none; } /* of the palette, whose keys stay */
[data-testid="stMainBlockContainer"] { padding: 1rem 2.5rem; max-width: none; }
[data-testid="stMainBlockContainer"] h1 {
  font-size: clamp(1.3rem, 2.4vw, 2.2rem); padding-bottom: 0.4rem;
}
/* The rest of the window. */
[data-testid="stLayoutWrapper"]:has(> .st-key-story-chart) {
  flex: 0 0 max(420px, 100vh - 17rem);
}
@media (max-width: 1200px) { /* The ways on have a row of their own. */
  .st-key-story > .st-key-finding { flex: 0 0 100%; }
  [data-testid="stLayoutWrapper"]:has(> .st-key-story-chart) {
    flex: 0 0 max(420px, 100vh - 20.5rem);
  }
}
@media (max-width: 640px) {
  [data-testid="stMainBlockContainer"] { padding: 0.5rem 1rem; }
  .st-key-finding, .st-key-chart-stratification { overflow-x: auto; }
  .st-key-chart-stratification > div { min-width: 720px; }
  .st-key-finding [role="radiogroup"] { flex-wrap: nowrap !important; }
}
"""


def draw(loaded: Loaded) -> None:
    """The page."""
    if loaded.shown is None:  # the plan bar says why
        st.title("Story", anchor=False)
        return
    st.html(f"<style>{_STYLE}</style>")
    name = _way_part()
    sentence = st.container()
    with st.container(horizontal=True, vertical_alignment="bottom", key="story-control"):
        if loaded.shown.file:
            finding = Finding(_OF_A_FILE, None)
            st.button("Back to the controls", key="story.controls", on_click=forget_import)
        else:
            try:
                finding = FINDINGS[name](loaded)
            except UserError as error:
                finding = Finding(literal(error), None)
        if finding.controls:
            st.button(
                "Use this plan",
                key="story.use",
                icon=":material/check:",
                on_click=show_plan,
                args=({**finding.controls, **finding.afterwards},),
            )
    sentence.title(finding.sentence, anchor=False)
    sentence.caption(_about(loaded, name))
    if finding.chart is not None:
        with st.container(key="story-chart", height="stretch"):
            large_chart(finding.chart)


def _about(loaded: Loaded, finding: str) -> str:
    """Of which model the finding is, and on what its losses are measured: the rest is hidden.

    Of a second plan the first finding has the numbers.
    """
    words = f"Model: {literal(loaded.model.name)}."
    if loss := loss_of_plan(loaded)[0]:
        words += f" Loss on held-out text of {literal(', '.join(loss.change))}."
    if finding == next(iter(FINDINGS)) and (second := loaded.as_second) and second.shown:
        size = format_bytes(bytes_after(second, second.shown))
        lost = loss_text(second, *loss_of_plan(second))
        words += f" Second plan, {literal(second.shown.name)}: {size}, {literal(lost)}."
    return f"{words} {DEMO_NOTE}" if loaded.model.name == DEMO_MODEL else words


def _way_part() -> str:
    """The names of the findings, and the ways on, back and out; the finding that is shown."""
    with st.container(horizontal=True, vertical_alignment="center", key="story"):
        name = view_switch("Finding", _KEY, TITLES)
        names = list(FINDINGS)
        place = names.index(name)
        for label, step, icon in (("Back", -1, "arrow_back"), ("Next", 1, "arrow_forward")):
            target = names[min(max(place + step, 0), len(names) - 1)]
            st.button(
                label,
                key=f"story.{label.lower()}",
                icon=f":material/{icon}:",
                disabled=target == name,
                on_click=st.session_state.update,
                args=({_KEY: target},),
            )
        with st.container(key="story-close", width="content"):
            link_to(page_before() or FIRST, "Close (Esc)", "close")
    return name
