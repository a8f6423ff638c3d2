"""One bar per layer: experts kept, draggable under a fixed budget, drawn in the browser."""

from collections.abc import Callable, Mapping
from pathlib import Path

import streamlit as st

from app.components.assets import component_of
from app.components.schedule_editor.payload import Bars, Edit, bars_payload, checked_edit, stamp_of

__all__ = ["Bars", "Edit", "checked_edit", "edit_message", "schedule_editor"]


def edit_message(key: str) -> object:
    """The last browser message; untrusted, see `checked_edit`."""
    state = st.session_state.get(key)
    return state.get("edit") if isinstance(state, Mapping) else None


def schedule_editor(bars: Bars, *, key: str, on_edit: Callable[[], None]) -> None:
    """Draw the editor.

    Dragging stays in the browser; a release calls `on_edit` before the script, which finds the
    edit in `edit_message(key)`. The arguments of the next call decide what is shown.
    """
    html = '<div class="schedule-editor"></div>'
    component_of(Path(__file__).parent, html=html, css="schedule_editor.css")(
        key=key, data=bars_payload(bars, stamp_of(edit_message(key))), on_edit_change=on_edit
    )
