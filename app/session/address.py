"""URL parameters of the plan, kept when the page changes."""

from typing import Final

import streamlit as st

# Keys of the controls on every page; blend sliders start with "share.".
_KEYS: Final = frozenset(
    (
        *("granularity", "corpus", "sparsity", "budget", "criterion", "b", "alpha", "beta", "gate"),
        *("baseline", "neurons", "lambda", "scope", "unit", "width", "width_multiple"),
        *("neuron_multiple", "schedule", "searched", "multiple", "protect", "counts", "locked"),
        *("pin", "drop", "expert"),
    )
)
_LAST: Final = "page.last"


def keep_in_address(page: str) -> None:
    """Carry the control values of the previous page over to the URL of the new one.

    Called in the entry script before the controls are drawn. Streamlit 1.67 drops parameters of
    controls that the browser has not redrawn yet, but writes values set in the session.
    """
    if st.session_state.get(_LAST, page) != page:
        for key in map(str, tuple(st.session_state)):
            if key in _KEYS or key.startswith("share."):
                st.session_state[key] = st.session_state[key]
    st.session_state[_LAST] = page
