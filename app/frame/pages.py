"""A page as a function of its context."""

from collections.abc import Callable

import streamlit as st

from app.charts.context import Context


def draw_page(page: Callable[[Context], Context]) -> None:
    """Draw a page with the entry script's context, and return the updated context.

    Streamlit runs a page as a script, which has neither arguments nor a result.
    """
    st.session_state["context"] = page(st.session_state["context"])
