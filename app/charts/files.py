"""Figures as files and enlarged for slides; PNG, SVG and PDF need a browser to write, HTML none."""

import re
from pathlib import Path
from typing import Any, Final

import plotly.graph_objects as go

from analysis.errors import UserError
from analysis.files.durable import write_durably
from analysis.machine.extras import has_extra, install_line
from app.charts.theme import PLOTLY_CONFIG

_IMAGES = (".png", ".svg", ".pdf")
SCALE: Final = 1.35
_SMALL: Final = re.compile(r"font-size:(\d+)px")


def write_figure(figure: go.Figure, path: Path) -> None:
    """Write a figure in the format of the suffix."""
    if path.suffix == ".html":
        write_durably(path, figure_html(figure).encode())
        return
    if path.suffix not in _IMAGES:
        raise UserError(f"{path.name} has no known ending; use .html, {', '.join(_IMAGES)}.")
    write_durably(path, figure_image(figure, path.suffix.removeprefix(".")))


def figure_html(figure: go.Figure) -> str:
    """A page with the figure and plotly.js; opens offline."""
    page: str = figure.to_html(include_plotlyjs=True, full_html=True, config=PLOTLY_CONFIG)
    return page


def figure_image(figure: go.Figure, kind: str) -> bytes:
    """The figure on white as `svg`, `png` or `pdf`."""
    white = go.Figure(figure).update_layout(paper_bgcolor="white", plot_bgcolor="white")
    if not has_extra("plots"):
        raise UserError(
            f"A {kind} file needs kaleido: {install_line('plots')}; an .html file does not."
        )
    try:
        image: bytes = white.to_image(format=kind, width=1000)
    except RuntimeError as error:  # how kaleido says that there is no browser
        raise UserError(
            f"A {kind} file needs Chromium or Chrome, and none was found; install one, or write "
            ".html instead."
        ) from error
    return image


def enlarged(figure: go.Figure) -> go.Figure:
    """A copy of the figure with fonts, markers and height scaled by `SCALE`."""
    content = _scaled(figure.to_plotly_json(), "")
    layout = content["layout"]
    if "height" in layout:
        layout["height"] = round(layout["height"] * SCALE)
    return go.Figure(content)


def _scaled(node: Any, name: str) -> Any:
    """The value of the key `name`, with sizes of fonts and markers scaled."""
    if isinstance(node, list | tuple):
        return [_scaled(item, name) for item in node]
    if name == "text" and isinstance(node, str):
        return _SMALL.sub(lambda match: f"font-size:{int(match[1]) * SCALE:.0f}px", node)
    if not isinstance(node, dict):
        return node
    content = {key: _scaled(value, key) for key, value in node.items()}
    size = content.get("size")
    if (name.endswith("font") or name == "marker") and isinstance(size, int | float):
        content["size"] = round(size * SCALE, 1)
    return content
