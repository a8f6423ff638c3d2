"""Cards: one number each, with a line below that is no judgement."""

from typing import Any

import streamlit as st


def card(
    label: str, value: str, below: str | None = None, *, note: str | None = None, place: Any = st
) -> None:
    """Draw a card of the height of its neighbours."""
    place.metric(
        label,
        value,
        below,
        delta_color="off",
        delta_arrow="off",
        border=True,
        height="stretch",
        help=note,
    )
