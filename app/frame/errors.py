"""What cannot be done, in red, with the ways out where the program knows some."""

import streamlit as st

from analysis.errors import UserError
from app.literal import literal
from pruning.planning.choice import CountsError, counts_text


def error_part(error: UserError) -> None:
    """Draw why; of counts by hand also the nearest that fit, and the sparsity that they spend."""
    st.error(literal(error), icon=":material/error:")
    if not isinstance(error, CountsError):
        return
    nearest = counts_text(error.nearest)
    ways: list[tuple[str, str, str | int]] = [(f"Keep {nearest}", "counts", nearest)]
    if error.percent is not None:
        ways.append((f"Set the sparsity to {error.percent}%", "sparsity", error.percent))
    with st.container(horizontal=True):
        for label, key, value in ways:
            set_it = st.session_state.update
            st.button(label, key=f"counts.to.{key}", on_click=set_it, args=({key: value},))
