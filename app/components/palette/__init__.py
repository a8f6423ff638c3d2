"""Share, the list of keys, and the palette that goes to a page, criterion, plan or expert."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import streamlit as st

from app.components.assets import component_of

__all__ = ["KEYS", "Pick", "palette", "picked"]

Pick = tuple[str, str]  # a kind of entry, and its value
# Where keys work -> what each does. Those of the map, the bars, a text and the story are read by
# their own scripts.
KEYS: Final[Mapping[str, Mapping[str, str]]] = {
    "Everywhere": {
        "?": "this list",
        "Ctrl+K": "go to a page, criterion, plan or expert",
        "Escape": "close",
    },
    "Expert map": {
        "Arrow keys": "move between experts and layers",
        "Home, End": "first and last expert of the layer",
        "Enter": "choose the expert",
        "Escape": "choose none",
    },
    "Bars of the plan": {
        "Up, Down": "keep one more, one fewer",
        "Page Up, Page Down": "a tenth more, fewer",
        "Home, End": "fewest, most",
        "Left, Right": "next layer",
        "L": "lock the layer",
        "Ctrl+Z, Ctrl+Y": "undo, redo",
    },
    "Tokens of a text": {"Arrow keys": "move between tokens", "Enter": "choose the token"},
    "Story": {"Left, Right": "turn the page", "Escape": "leave"},
}


def palette(
    payload: Mapping[str, Any],
    *,
    key: str,
    on_pick: Callable[[], None],
) -> None:
    """Draw the buttons and the closed dialogs.

    `payload` has `pages`, `criteria`, `pins`, `plans` (None: not asked for), each pairs of a value
    and its words, and `layers`, pairs of a layer and its number of experts. `on_pick` is called
    before the script when an entry was picked; `picked(key)` then has it.
    """
    html = '<div class="palette"></div>'
    draw = component_of(Path(__file__).parent, html=html, css="palette.css")
    keys = [[where, list(keys.items())] for where, keys in KEYS.items()]
    draw(
        key=key,
        data={**payload, "keys": keys},
        width="content",
        on_pick_change=on_pick,
        on_opened_change=lambda: None,
    )


def opened(key: str) -> bool:
    """Whether the palette was opened just now, before it is drawn."""
    return bool(_sent(key, "opened"))


def picked(key: str) -> Pick | None:
    """The entry that the browser sent; untrusted, so it may be none of those that were offered."""
    match _sent(key, "pick"):
        case {"kind": str(kind), "value": str(value)}:
            return kind, value
    return None


def _sent(key: str, name: str) -> object:
    state = st.session_state.get(key)
    return state.get(name) if isinstance(state, Mapping) else None
