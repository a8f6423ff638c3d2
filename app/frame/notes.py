"""Notes on pages: why there is nothing to show, and equivalent command lines."""

from typing import Final

import streamlit as st

NO_CALIBRATION: Final = "No calibration yet: start one on the **Start** page."


def inform(text: str) -> None:
    """Show why there is nothing to draw, or what to do; `text` is Markdown."""
    st.info(text, icon=":material/info:")


def show_command(*lines: str, heading: str = "") -> None:
    """Show command lines, below a heading if there is one."""
    if heading:
        st.markdown(f"**{heading}**")
    st.code("\n".join(lines), language=None, wrap_lines=True)
