"""Figures for a room: the same drawing with larger type, marks and height."""

from typing import Any, Final

import plotly.graph_objects as go

SCALE: Final = 1.35


def enlarged(figure: go.Figure) -> go.Figure:
    """The figure with every font, marker and its height larger by `SCALE`; the given one stays."""
    content = _scaled(figure.to_plotly_json(), "")
    layout = content["layout"]
    if "height" in layout:
        layout["height"] = round(layout["height"] * 1.15)
    return go.Figure(content)


def _scaled(node: Any, name: str) -> Any:
    if isinstance(node, dict):
        return {key: _larger(value, name, key) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return [_scaled(item, name) for item in node]
    return node


def _larger(value: Any, parent: str, key: str) -> Any:
    is_size = key == "size" and (parent.endswith("font") or parent == "marker")
    if is_size and isinstance(value, int | float):
        return round(value * SCALE, 1)
    return _scaled(value, key)
