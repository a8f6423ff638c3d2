"""Values that a URL gives to a control and that it does not have: one line says so."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from app.literal import literal
from app.session.state import page_now

_SAID: Final = "url.unknown"  # session: key of a control -> its page, and the line
_MOST_NAMED, _MOST_SAID = 12, 60  # options, and characters of a value


def say_unknown(
    label: str,
    key: str,
    options: Sequence[Any],
    words: Callable[[Any], str] = str,
    place: DeltaGenerator | None = None,
) -> None:
    """Say which value of the URL a control does not have, and what it has, before it is drawn.

    Streamlit then takes its default without a word. The line stays while the page is open. Of a
    control that was drawn already, the URL holds what a person chose. The line goes to `place`, for
    controls of the sidebar, which may be closed.
    """
    lines = dict(st.session_state.get(_SAID, {}))
    if key not in st.session_state:
        lines.pop(key, None)
        valid_values = {*map(str, options), *map(words, options)}
        unknown = [value for value in st.query_params.get_all(key) if value not in valid_values]
        if unknown:
            lines[key] = page_now(), _line(label, unknown[0], _listed(options, words))
        st.session_state[_SAID] = lines
    page, line = lines.get(key, ("", ""))
    if line and page == page_now():
        (place or st).warning(line, icon=":material/link_off:")


def _line(label: str, value: str, listed: str) -> str:
    return f"{label} {literal(repr(value[:_MOST_SAID]))} of the URL is not here. Known: {listed}."


def _listed(options: Sequence[Any], words: Callable[[Any], str]) -> str:
    if isinstance(options, range):
        return f"{options[0]} to {options[-1]}"
    names = [literal(words(option)) for option in options]
    rest = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {rest} more" if rest > 0 else "")
