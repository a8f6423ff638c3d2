"""A text whose tokens are coloured and can be chosen, with the mouse or the keyboard."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import streamlit as st

from app.charts.theme import text_on
from app.components.assets import component_of

__all__ = ["chosen_token", "token_text"]


def token_text(
    tokens: Sequence[tuple[str, str, str]],
    selected: int,
    *,
    first: int,
    key: str,
    on_select: Callable[[], None],
) -> None:
    """Draw the text: of each token what is shown, what it says, and its #rrggbb colour.

    Tokens count from 1; those before `first` cannot be chosen, `selected` is marked. `on_select` is
    called before the script when one is chosen; `chosen_token(key)` then has it.
    """
    data = {
        "tokens": [text for text, _, _ in tokens],
        "notes": [note for _, note, _ in tokens],
        "colors": [color for _, _, color in tokens],
        "inks": [text_on(color) for _, _, color in tokens],
        "selected": selected,
        "first": first,
    }
    html = '<div class="token-text"></div>'
    draw = component_of(Path(__file__).parent, html=html, css="token_text.css")
    draw(key=key, data=data, on_token_change=on_select)


def chosen_token(key: str) -> int | None:
    """The token that the browser sent, from 1; untrusted, so it may be of no text."""
    state = st.session_state.get(key)
    chosen = state.get("token") if isinstance(state, Mapping) else None
    number = chosen.get("number") if isinstance(chosen, Mapping) else None
    return number if type(number) is int else None
