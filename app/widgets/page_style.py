"""CSS that Streamlit's theme cannot set: margins, narrow windows, contrast, focus."""

from typing import Final

import streamlit as st

from app.charts.theme import ink, muted, paper, primary

# The top margin clears the navigation. Charts side by side need a window of 1200 px, or their words
# overlap; in narrower ones they are stacked.
_EVERYWHERE: Final = """
[data-testid="stMainBlockContainer"] { padding: 4.4rem 2.5rem 4rem; }
[data-testid="stMainBlockContainer"] > [data-testid="stVerticalBlock"] { gap: 0.7rem; }
[data-testid="stMainBlockContainer"] h1 { font-size: 1.4rem; line-height: 1.3; padding: 0; }
.st-key-facts [data-testid="stMetric"] { padding: 0.3rem 0.8rem; }
.st-key-facts [data-testid="stMetric"] > div {
  display: flex; flex-flow: row wrap; align-items: center; gap: 0.6rem;
}
.st-key-facts [data-testid="stMetricValue"] { font-size: 1.1rem; }
[data-testid="stExpandSidebarButton"]::after {
  content: "Model and plan"; font: 1rem var(--st-font, sans-serif); color: var(--ink);
  padding-right: 0.4rem;
}
[data-testid="stExpandSidebarButton"] { width: auto; gap: 0.3rem; }
/* Beside the heading, where it moves nothing when an expert is pinned. */
[data-testid="stMainBlockContainer"] > [data-testid="stVerticalBlock"] { position: relative; }
[data-testid="stLayoutWrapper"]:has(> .st-key-pinned-expert) {
  position: absolute; top: 0; right: 0; width: auto;
}
.st-key-plan-bar {
  position: sticky;
  top: 3.75rem;
  z-index: 99;
  padding: 0.3rem 0;
}
/* As high as the line beside it. */
.st-key-plan-bar button { min-height: 0; padding: 0; }
/* A name in each of up to 16 cells of a row. */
[class*="st-key-chart"][class*="winner-map"] { overflow-x: auto !important; }
[class*="st-key-chart"][class*="winner-map"] > div { min-width: 1100px; }
[data-testid="stMetricDelta"] p { white-space: normal !important; }
[data-testid="stColumn"]:has([data-testid="stMetric"]) { min-width: 8rem; }
[data-testid="stButtonGroup"] [role="radiogroup"] { flex-wrap: wrap; }
[class*="st-key-panels"] > div { flex: 1 1 190px; }
[class*="st-key-panels"] > :first-child { flex-basis: 100%; }
.st-key-panels-stratification > :nth-child(n) { flex-basis: 420px; }
@media (max-width: 640px) {
  /* Too wide for a phone: these scroll within their own frame. */
  .wide-charts { overflow-x: auto !important; }
  .wide-charts > div { min-width: 720px; }
  [data-testid="stColumn"]:has([data-testid="stMetric"]) { min-width: calc(50% - 1rem); }
  [data-testid="stTable"] :is(th, td), [data-testid="stTable"] :is(th, td) p { font-size: 0.75rem; }
}
[data-testid="stTable"] tbody th p { white-space: nowrap !important; }
@media (max-width: 1200px) {
  [data-testid="stTable"] :is(th, td) { padding: 0.25rem; }
  [data-testid="stMain"] [data-testid="stColumn"]:has([data-testid="stPlotlyChart"]) {
    min-width: 100%;
  }
}
[data-testid="stExpander"] summary { opacity: 1; }
[data-testid="stMain"] h2 { font-size: 1.3rem; }
.st-key-explore-map, .st-key-plan-editor, .st-key-export-start, h1 { scroll-margin-top: 5rem; }
"""
# Charts with many columns of words.
_WIDE: Final = ", ".join(
    f'[class*="st-key-chart"][class*="{name}"]'
    for name in (
        "pareto",
        "same-bytes",
        "overlap-by-tokens",
        "loss-by-tokens",
        "effects",
        "text-experts",
    )
)
# Contrast of at least 4.5:1: Streamlit fades some text, colours code for another background, and
# writes white on the primary colour, which is too bright for that in the dark theme.
_COLORS: Final = """
.st-key-plan-bar { background: var(--page); }
[data-testid="stExpander"] summary, [data-testid="stExpander"] summary * { opacity: 1; }
[data-testid="stCaptionContainer"], ::placeholder { color: var(--faint) !important; opacity: 1; }
[data-testid="stCode"] .token { color: inherit !important; }
[data-testid^="stBaseButton"] kbd { opacity: 1; }
[data-testid^="stBaseButton-primary"], [data-testid="stMultiSelectTagsContainer"] span {
  color: var(--page);
}
[data-testid^="stBaseButton-primary"]:is(:hover, :focus-visible) {
  background: color-mix(in srgb, var(--mark) 85%, var(--ink)) !important;
}
:is(a, button, summary, [role="radio"], [role="tab"]):focus-visible {
  outline: 2px solid var(--mark) !important;
  outline-offset: 2px;
}
"""


def apply_page_style() -> None:
    """Apply the page style in the browser's theme."""
    dark = st.context.theme.type == "dark"
    colors = f"--page: {paper(dark)}; --ink: {ink(dark)}; --mark: {primary(dark)};"
    colors += f"--faint: {muted(dark)};"
    layout = _EVERYWHERE.replace(".wide-charts", f":is({_WIDE})")
    st.html(f"<style>:root {{ {colors} }}{layout}{_COLORS}</style>")
