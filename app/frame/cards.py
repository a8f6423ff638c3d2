"""Cards: one number each, with a neutral line below."""

from typing import Any

import streamlit as st


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
