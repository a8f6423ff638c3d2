"""Building blocks of charts: series lines, chance, heat maps, rows of layers, notes."""

from collections.abc import Iterable, Mapping, Sequence
from math import inf, isfinite
from typing import Any, Final

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from numpy.typing import NDArray

from analysis.foreign_text import in_html
from app.charts.theme import Look, colorbar, colorscale, ink, muted, paper, pinned

Place = tuple[int, int]  # a layer and an expert
MOST_CLICKED: Final = 2048  # experts drawn at once; as many marks more take a second
MOST_MARKED: Final = 48  # layers of a line; on a phone the marks of more run together
Names = tuple[str, str]  # of the compared recipes A and B

STILL_LEGEND: Final = {"itemclick": False, "itemdoubleclick": False, "traceorder": "normal"}
_ROOM: Final = 0.06  # of an axis, free at each end
# Colours of an overlap: its distance above chance, see `above_chance`.
ABOVE_CHANCE: Final = {"tickvals": [0, 0.5, 1], "ticktext": ["chance", "halfway", "the same"]}
# The axis of a share of pruned sets, with room for marks at 0 and at 1.
OVERLAP_AXIS: Final = {"range": [-0.03, 1.06], "tickformat": ".1f"}


def signed(values: Any, digits: int) -> NDArray[np.float64]:
    """Values that are shown with a sign and so many digits; what those round to 0 is 0.

    d3, which writes hovers and the numbers of tables, keeps the minus of -0.0004 in `+.3f`.
    """
    numbers = np.asarray(values, dtype=np.float64)
    return np.where(np.abs(numbers) < 0.5 * 10.0**-digits, 0.0, numbers)


def padded(
    values: Iterable[float], *, least: float = -inf, most: float = inf, narrowest: float = 0.0
) -> list[float]:
    """The range of an axis: that of finite values with room at its ends.

    Never below `least` or above `most`, of what cannot be less or more; at least `narrowest` wide,
    so that ticks differ.
    """
    finite_values = [value for value in map(float, values) if isfinite(value)] or [0.0]
    low, high = min(finite_values), max(finite_values)
    # A single value gets a tenth of itself to both sides.
    width = max(high - low, narrowest) or 0.2 * abs(high) or 1.0
    middle, half = (low + high) / 2, (0.5 + _ROOM) * width
    return [max(least, middle - half), min(most, middle + half)]


def series(look: Look, name: str, points: tuple[Any, Any], hover: str, **more: Any) -> go.Scatter:
    """The line of a series through points (x, y)."""
    mark, mode = more.pop("marker", {}), more.pop("mode", "lines+markers")
    line = {"color": look.color, "width": 2, "dash": look.dash}
    return go.Scatter(
        x=points[0],
        y=points[1],
        name=in_html(name),
        mode=mode,
        line=line if "lines" in mode else None,
        marker={"symbol": look.symbol, "color": look.color, "size": 9} | mark,
        hovertemplate=f"{hover}<extra></extra>",
        **more,
    )


def line_mode(layers: int) -> str:
    """The mode of lines over so many layers: with marks, unless those would run together."""
    return "lines+markers" if layers <= MOST_MARKED else "lines"


def stroke(x: Any, y: Any, color: str, width: float, **more: Any) -> go.Scatter:
    """A line without hover and legend, unless `more` adds them."""
    usual = {"mode": "lines", "hoverinfo": "skip", "showlegend": False}
    return go.Scatter(x=x, y=y, line={"color": color, "width": width}, **usual | more)


def chance(x: Any, y: Any, dark: bool, hover: str, *, name: str = "chance", **more: Any) -> Any:
    """The dotted line of chance."""
    line = {"color": muted(dark), "dash": "dot", "width": more.pop("width", 2)}
    hover = f"{hover}<extra></extra>"
    return go.Scatter(x=x, y=y, name=name, mode="lines", line=line, hovertemplate=hover, **more)


def halo(dark: bool, width: int = 2) -> tuple[tuple[str, int], tuple[str, int]]:
    """Colours and widths of a line visible on any background: the wide one is drawn first."""
    return (paper(dark), width + 3), (ink(dark), width)


def around(x: float, y: float, reach: float = 0.5) -> tuple[list[float], list[float]]:
    """The closed path around a cell, as x and y."""
    return (
        [x + side * reach for side in (-1, 1, 1, -1, -1)],
        [y + side * reach for side in (-1, -1, 1, 1, -1)],
    )


def box(x: tuple[float, float], y: tuple[float, float], color: str, width: float) -> dict[str, Any]:
    """A rectangle between the ends of `x` and `y`, as a shape."""
    ends = {"x0": x[0], "x1": x[1], "y0": y[0], "y1": y[1]}
    return {"type": "rect", **ends, "line": {"color": color, "width": width}}


def pin(x: float, y: float, dark: bool, axes: str = "") -> list[dict[str, Any]]:
    """Shapes that frame the cell of the chosen expert; `axes` is "2" for x2 and y2."""
    return pin_box((x - 0.5, x + 0.5), (y - 0.5, y + 0.5), dark, axes)


def pin_box(
    x: tuple[float, float], y: tuple[float, float], dark: bool, axes: str = ""
) -> list[dict[str, Any]]:
    """Shapes that frame a mark of the chosen expert between these ends."""
    place = {"xref": f"x{axes}", "yref": f"y{axes}"}
    looks = (paper(dark), 5), (pinned(dark), 3)
    return [box(x, y, color, width) | place for color, width in looks]


def pin_point(points: Iterable[Any], place: Place, dark: bool) -> go.Scatter:
    """A ring around the points (x, y) of the chosen expert."""
    x, y = points
    name = f"pinned: layer {place[0]}, expert {place[1]}"
    line = {"color": pinned(dark), "width": 3}
    mark = {"symbol": "circle-open", "size": 16, "color": pinned(dark), "line": line}
    return go.Scatter(x=x, y=y, mode="markers", name=name, marker=mark, hoverinfo="skip")


def heat(z: Any, title: str, dark: bool, bar: Mapping[str, Any], **more: Any) -> go.Heatmap:
    """Cells from 0 to 1, with their colour bar; NaN is a gap."""
    usual = {
        "zmin": 0,
        "zmax": 1,
        "colorscale": colorscale(dark),
        "colorbar": colorbar(title, dark, **bar),
        "hoverongaps": False,
    }
    return go.Heatmap(z=z, **usual | more)


def takes_clicks(num_experts: int) -> bool:
    """Whether maps of so many experts, drawn at once, have a mark to click on each."""
    return num_experts <= MOST_CLICKED


def drags(num_experts: int) -> str | bool:
    """What a drag over such a map does: large ones zoom, for no mark waits for a click."""
    return False if takes_clicks(num_experts) else "zoom"


def targets(x: Any, y: Any, customdata: Any, size: int, **more: Any) -> go.Scatter:
    """Invisible marks over cells: Streamlit selects points, not cells."""
    invisible = {"marker": {"opacity": 0}}
    return go.Scatter(
        x=x,
        y=y,
        customdata=customdata,
        mode="markers",
        marker={"symbol": "square", "size": size, "opacity": 0},
        selected=invisible,
        unselected=invisible,
        showlegend=False,
        **more,
    )


def annotation(x: Any, y: Any, text: str, **more: Any) -> dict[str, Any]:
    """An annotation without an arrow."""
    return {"x": x, "y": y, "text": text, "showarrow": False, **more}


def spread(values: Any, low: Any, high: Any, **more: Any) -> dict[str, Any]:
    """Error bars between `low` and `high`."""
    return {"type": "data", "array": high - values, "arrayminus": values - low, **more}


def cells_of(table: pd.DataFrame, layers: Sequence[int]) -> tuple[tuple[Any, Any], tuple[int, int]]:
    """Grid row and column of each `layer, expert` of a table, and the shape of the grid."""
    rows, experts = np.searchsorted(layers, table["layer"].to_numpy()), table["expert"].to_numpy()
    return (rows, experts), (len(layers), int(experts.max()) + 1)


def rows_height(layers: Sequence[int], pixels: int, around: int) -> int:
    """Height of a heat map with `pixels` per layer, within bounds, plus `around`."""
    return int(np.clip(len(layers) * pixels, 190, 470)) + around


def layer_axis(layers: Sequence[int], every: int | None = None, **more: Any) -> dict[str, Any]:
    """The axis of layer rows, the first on top, with every n-th decoder index.

    Rows are positions, so that layers without experts leave no gap.
    """
    every = max(1, len(layers) // 12) if every is None else every
    return {
        "range": [len(layers) - 0.5, -0.5],
        "tickvals": list(range(len(layers)))[::every],
        "ticktext": [str(layer) for layer in layers[::every]],
        "showgrid": False,
        **more,
    }


def as_float32(values: Any) -> NDArray[np.float32]:
    """Numbers as float32: half the bytes for the browser."""
    return np.asarray(values, dtype=np.float32)
