"""Two linked layer x rank heatmaps with one selection, drawn on canvas in the browser."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import streamlit as st

from app.components.assets import component_of
from app.components.expert_map.payload import (
    Arrangement,
    MapPanel,
    Mode,
    Selection,
    map_payload,
    parse_selection,
    settle,
)

__all__ = ["Arrangement", "MapPanel", "Mode", "Selection", "expert_map", "map_payload"]

_FOLDER = Path(__file__).parent


def expert_map(
    payload: Mapping[str, Any],
    *,
    key: str,
    height: int | None = None,
    on_select_change: Callable[[], None] | None = None,
) -> Selection | None:
    """Draw the map and return the selected (layer, expert).

    A click in the browser and a change of `payload["selected"]` both move the selection; the
    later one holds. `on_select_change` is called before the script when the browser's choice
    changes; `st.session_state[key]["selection"]` then holds it as a mapping with "layer" and
    "expert", both None when it was cleared. The key `key + ".memory"` is used as well. A panel has
    this height in pixels, within what 5 to 28 px a layer allow.
    """
    state = st.session_state.get(key)
    reported = state.get("selection") if isinstance(state, Mapping) else None
    given = payload["selected"]
    memory = settle(
        st.session_state.get(f"{key}.memory"),
        reported,
        parse_selection(reported, payload),
        None if given is None else (given[0], given[1]),
    )
    st.session_state[f"{key}.memory"] = memory
    # The model may have changed.
    layer, expert = memory.current or (None, None)
    selected = parse_selection({"layer": layer, "expert": expert}, payload)
    draw = component_of(_FOLDER, html='<div class="expert-map"></div>', css="expert_map.css")
    draw(
        key=key,
        data={**payload, "selected": selected and list(selected), "height": height},
        # Streamlit keeps only states with a callback.
        on_selection_change=on_select_change or (lambda: None),
    )
    return selected
