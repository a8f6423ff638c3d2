"""Cards: one number each, with a line below that is no judgement."""

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

    What stands below is what the number is a part of, or compares with: neither green nor red,
    unless `look`, further arguments of `st.metric`, says so.
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
