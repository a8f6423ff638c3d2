"""What Streamlit's theme has no setting for: margins, narrow windows, contrast, focus."""

from typing import Final

import streamlit as st

from app.charts.theme import muted, paper, primary

# The top margin clears the navigation. Charts side by side need the room that a window of 1200 px
# has next to the sidebar; in a narrower one they stand below each other, or their words overlap.
# A chart's bar stands above it: inside, it would lie on the legend, on touch screens always.
_EVERYWHERE: Final = """
[data-testid="stMainBlockContainer"] { padding: 4.5rem 2.5rem 4rem; }
[data-testid="stMainBlockContainer"] h1 { font-size: 1.5rem; padding: 0; }
.st-key-facts [data-testid="stMetric"] { padding: 0.3rem 0.8rem; }
.st-key-facts [data-testid="stMetric"] > div {
  display: flex; flex-flow: row wrap; align-items: center; gap: 0.6rem;
}
.st-key-facts [data-testid="stMetricValue"] { font-size: 1.1rem; }
.st-key-see-why a { background: #0f6d7e; width: fit-content; padding: 0.4rem 1.2rem; }
.st-key-see-why a * { color: #fff !important; }
.st-key-plan-bar {
  position: sticky;
  top: 3.75rem;
  z-index: 99;
  padding: 0.3rem 0;
}
@media (max-width: 640px) {
  /* Charts of panels and cells need this room: in a narrower window they are moved sideways. */
  .stVerticalBlock:has(> .stElementContainer [data-testid="stPlotlyChart"]) {
    overflow-x: auto;
  }
  [data-testid="stElementContainer"]:has([data-testid="stPlotlyChart"]) { min-width: 560px; }
}
@media (max-width: 1200px) {
  [data-testid="stMain"] [data-testid="stColumn"]:has([data-testid="stPlotlyChart"]) {
    min-width: 100%;
  }
}
[data-testid="stElementContainer"]:has([data-testid="stPlotlyChart"]) {
  box-sizing: content-box;
  padding-top: 26px;
}
[data-testid="stExpander"] summary { opacity: 1; }
[data-testid="stMain"] h2 { font-size: 1.3rem; }
[data-testid="stPlotlyChart"] .js-plotly-plot { overflow: visible !important; }
[data-testid="stPlotlyChart"] .modebar-container { transform: translateY(-26px); }
.st-key-tour {
  position: fixed; right: 1.5rem; bottom: 1.5rem; z-index: 999990;
  width: min(25rem, calc(100vw - 3rem)); box-shadow: 0 4px 24px rgb(0 0 0 / 35%);
}
.st-key-explore-map, .st-key-plan-editor, .st-key-tab, .st-key-export-start, h1 {
  scroll-margin-top: 5rem;
}
"""
# Text has 4.5:1 everywhere: Streamlit fades some of it, colours code for another ground, and writes
# white on the primary colour, which in the dark theme is too bright for it.
_COLORS: Final = """
.st-key-tour, .st-key-plan-bar { background: var(--page); }
[data-testid="stExpander"] summary, [data-testid="stExpander"] summary * { opacity: 1; }
[data-testid="stCaptionContainer"], ::placeholder { color: var(--faint) !important; opacity: 1; }
[data-testid="stCode"] .token { color: inherit !important; }
[data-testid^="stBaseButton-primary"], [data-testid="stMultiSelectTagsContainer"] span {
  color: var(--page);
}
:is(a, button, summary, [role="radio"], [role="tab"]):focus-visible {
  outline: 2px solid var(--mark) !important;
  outline-offset: 2px;
}
"""


def apply_page_style() -> None:
    """The style of every page, in the theme of the browser."""
    dark = st.context.theme.type == "dark"
    colors = f"--page: {paper(dark)}; --faint: {muted(dark)}; --mark: {primary(dark)};"
    st.html(f"<style>:root {{ {colors} }}{_EVERYWHERE}{_COLORS}</style>")
