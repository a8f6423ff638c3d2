"""Two linked layer x rank heatmaps with one selection, drawn on canvas in the browser."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from app.components.assets import component_of
from app.components.expert_map.payload import (
    Arrangement,
    MapPanel,
    Mode,
    map_message,
    map_payload,
)

__all__ = ["FULL_LAYERS", "Arrangement", "MapPanel", "Mode", "expert_map", "map_payload"]

# So many layers fill the height of the map, which `page.css` keeps for it.
FULL_LAYERS: Final = 6


def expert_map(payload: Mapping[str, Any], *, key: str, on_select: Callable[[], None]) -> None:
    """Draw the map, with the expert of `payload["selected"]` marked.

    `on_select` is called before the script when an expert is clicked;
    `st.session_state[key]["selection"]` then holds a mapping with "layer" and "expert", both None
    when the choice was cleared. It is untrusted.
    """
    html = '<div class="expert-map"></div>'
    draw = component_of(Path(__file__).parent, html=html, css="expert_map.css")
    draw(key=key, data=map_message(payload), on_selection_change=on_select)
