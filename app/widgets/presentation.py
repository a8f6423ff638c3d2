"""Presentation mode: no sidebar and no navigation, larger type; part of the URL."""

from collections.abc import Sequence

import streamlit as st
from streamlit.navigation.page import Page

_KEY = "present"
# Relative to the theme's 15 px. Controls are hidden, not removed: otherwise their
# values would leave the session and the URL. Only the sparsity stays visible, in a strip below the
# page, where it covers nothing.
_STYLE = """
html { font-size: 22px !important; --zoom: 1.5; }
[data-testid="stSidebarCollapsedControl"], [data-testid="stExpandSidebarButton"],
[data-testid="stHeader"], .st-key-plan-controls, .st-key-facts {
  display: none !important;
}
[data-testid="stSidebar"] {
  visibility: hidden; position: fixed !important; transform: none !important;
  width: 0 !important; min-width: 0 !important;
}
[data-testid="stSidebar"] * { visibility: hidden; }
[data-testid="stSidebar"] :is(.st-key-sparsity, .st-key-sparsity *) { visibility: visible; }
[data-testid="stSidebar"] .st-key-sparsity {
  position: fixed; inset: auto 0 0; z-index: 999; width: auto;
  padding: 0.5rem 2.5rem 0; background: var(--page); border-top: 1px solid var(--faint);
}
.st-key-sparsity [data-testid="stSlider"] { display: flex; align-items: center; gap: 1.5rem; }
.st-key-sparsity label { flex: none; }
[data-testid="stMain"] { max-height: calc(100vh - 3.6rem); }
[data-testid="stMetricValue"] { font-size: 1.7rem; }
[data-testid="stMainBlockContainer"] { padding-top: 0; padding-bottom: 2rem; max-width: none; }
.st-key-plan-bar { top: 0; }
"""


def is_presented() -> bool:
    """Whether presentation mode is on; from the URL until its control is drawn."""
    if _KEY in st.session_state:
        return bool(st.session_state[_KEY])
    return str(st.query_params.get(_KEY, "")).lower() == "true"


def presentation_control() -> None:
    """The toggle in the sidebar."""
    st.toggle(
        "Presentation mode",
        key=_KEY,
        bind="query-params",
        help="Hides the sidebar and the navigation, and enlarges the type. Press Escape to leave.",
    )


def stage(pages: Sequence[Page], current: Page) -> Page | None:
    """Apply larger type and page buttons; return the page that a button asks for.

    Does nothing outside presentation mode. The caller switches after drawing all controls.
    """
    if not is_presented():
        return None
    st.html(f"<style>{_STYLE}</style>")
    place = [page.url_path for page in pages].index(current.url_path)
    target = None
    with st.container(horizontal=True, horizontal_alignment="right", key="stage"):
        if place > 0 and _turn("Previous", pages[place - 1].title, "PageUp"):
            target = pages[place - 1]
        if place + 1 < len(pages) and _turn("Next", pages[place + 1].title, "PageDown"):
            target = pages[place + 1]
        st.button(
            "Leave presentation",
            key="stage.leave",
            icon=":material/close_fullscreen:",
            shortcut="Escape",
            on_click=st.session_state.update,
            args=({_KEY: False},),
            type="tertiary",
        )
    return target


def _turn(word: str, title: str, shortcut: str) -> bool:
    return bool(
        st.button(
            f"{word}: {title}", key=f"stage.{word.lower()}", shortcut=shortcut, type="tertiary"
        )
    )
