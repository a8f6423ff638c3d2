"""Figures for presentations: larger type, marks and height."""

from typing import Any, Final

import plotly.graph_objects as go

SCALE: Final = 1.35


def enlarged(figure: go.Figure) -> go.Figure:
    """A copy of the figure with fonts, markers and height scaled by `SCALE`."""
    content = _scaled(figure.to_plotly_json(), "")
    layout = content["layout"]
    if "height" in layout:
        layout["height"] = round(layout["height"] * 1.15)
    return go.Figure(content)


def _scaled(node: Any, name: str) -> Any:
    """The value of a key, with sizes of fonts and markers scaled."""
    if isinstance(node, list | tuple):
        return [_scaled(item, name) for item in node]
    if not isinstance(node, dict):
        return node
    content = {key: _scaled(value, key) for key, value in node.items()}
    size = content.get("size")
    if (name.endswith("font") or name == "marker") and isinstance(size, int | float):
        content["size"] = round(size * SCALE, 1)
    return content
