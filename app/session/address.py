"""What every page's address says of the plan: kept where a person goes from page to page."""

from typing import Final

import streamlit as st

# Keys of the controls that are drawn on every page; sliders of a blend begin with "share.".
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
    """Write into the address of a page that was gone to what the controls said on the one before.

    For the entry script, before the controls are drawn. Streamlit 1.67 forgets parameters of those
    that the browser had not drawn again yet; what is set in the session it writes anew.
    """
    if st.session_state.get(_LAST, page) != page:
        for key in map(str, tuple(st.session_state)):
            if key in _KEYS or key.startswith("share."):
                st.session_state[key] = st.session_state[key]
    st.session_state[_LAST] = page
