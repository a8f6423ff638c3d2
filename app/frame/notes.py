"""Cards, notes and command lines on pages."""

from typing import Any, Final

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


def card(
    label: str,
    value: str,
    below: str | None = None,
    *,
    note: str | None = None,
    place: Any = st,
    **look: Any,
) -> None:
    """Draw a card of the height of its neighbours.

    The line below gives the total or the comparison, neither green nor red
    unless `look` (arguments of `st.metric`) sets it.
    """
    place.metric(
        label,
        value,
        below,
        border=True,
        height="stretch",
        help=note,
        **{"delta_color": "off", "delta_arrow": "off"} | look,
    )
