"""Colours and layout of all figures, light and dark."""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import plotly.graph_objects as go
from plotly.colors import hex_to_rgb

from analysis.foreign_text import in_html

# Of files; those of pages are below the charts, where ten buttons a chart would be stops of the Tab
# key.
PLOTLY_CONFIG: Final[dict[str, Any]] = {
    "displaylogo": False,
    "responsive": True,
    "toImageButtonOptions": {"format": "svg"},
    "modeBarButtonsToRemove": ["select2d", "lasso2d", "autoScale2d"],
}

FONT_FAMILY: Final = '"Source Sans", "Source Sans 3", "Source Sans Pro", system-ui, sans-serif'
FONT_SIZE: Final = 13
SMALL_SIZE: Final = 12

# Low to high, of the light and of the dark theme; both start near the page and end far from it. The
# expert map has the same stops.
SEQUENTIAL: Final = {
    False: ("#d5e8e4", "#a9d2cd", "#7cbabb", "#4f9da5", "#2c8390", "#17697b", "#0d4f65", "#07344d"),
    True: ("#24444f", "#265a68", "#2b7080", "#358794", "#4ea0a8", "#76babb", "#a8d6cf", "#e0f6ec"),
}

# Okabe-Ito without the two that fall under 3:1 on white (orange, sky blue); lightened for dark.
SERIES_LIGHT: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#5c6770", "#7a4fa3")
SERIES_DARK: Final = ("#56b4e9", "#f08a3c", "#35c99b", "#e3a1c6", "#aab4bb", "#b79ad8")
# One more than there are colours: the pairs repeat after 42 series, not after six.
SYMBOLS: Final = ("circle", "square", "diamond", "triangle-up", "x", "star", "triangle-down")
DASHES: Final = ("solid", "longdash", "dashdot", "dash", "longdashdot")  # "dot" is chance
PATTERNS: Final = ("", "/", ".", "x", "-", "\\", "+", "|")

CLEAR: Final = "rgba(0,0,0,0)"
GRID: Final = {False: "#d8e0e5", True: "#2b383f"}
# Colours of the light and of the dark theme. Text, and lines that must be read:
ink: Final = {False: "#17242d", True: "#e6eef2"}.__getitem__
# Secondary elements: chance lines, hatches, footers; still 4.5:1 on the page.
muted: Final = {False: "#4d5b65", True: "#aebbc2"}.__getitem__
# The page, for halos; figures themselves are transparent.
paper: Final = {False: "#ffffff", True: "#0f1518"}.__getitem__
# The product's colours: kept, selected.
primary: Final = {False: "#0f6d7e", True: "#3fb3c9"}.__getitem__
# The plan on screen, in charts and in its bar.
this_plan: Final = {False: "#c2570c", True: "#f08a3c"}.__getitem__
# The chosen expert, as on the expert map.
pinned: Final = {False: "#d6246e", True: "#ff5fa8"}.__getitem__
# Of the colour of what is below chance, just below: told from what is just above.
_FAINTEST: Final = 0.3
_AXIS_MARGIN: Final = 56
# Of the figure, not of the plot: when a chart gets another width and its legend other lines, plotly
# would leave a legend that is placed by the plot where it was, over the plot or below a gap.
_ON_TOP: Final = {"yref": "container", "y": 1, "yanchor": "top"}
# A border without colour keeps such a legend clear of the titles of panels.
OVER_TITLES: Final = {"borderwidth": 12, "bordercolor": CLEAR}
_GAP: Final = 0.2  # between panels side by side, of a panel's share
_FOOTER_LINE: Final = 15
_FOOTER_CHARACTERS: Final = 100  # about 500 px, within the 700 px of plotly's static images


@dataclass(frozen=True, slots=True)
class Look:
    """Visual identity of a series, with and without colour."""

    color: str
    symbol: str
    dash: str


def series_color(index: int, dark: bool) -> str:
    """Colour of the index-th series; always paired with a symbol, dash or pattern."""
    palette = SERIES_DARK if dark else SERIES_LIGHT
    return palette[index % len(palette)]


def nth_look(index: int, dark: bool) -> Look:
    """The look of the index-th series of a figure whose series are not criteria."""
    symbol, dash = SYMBOLS[index % len(SYMBOLS)], DASHES[index % len(DASHES)]
    return Look(series_color(index, dark), symbol, dash)


def colorscale(dark: bool) -> list[list[float | str]]:
    """The sequential colours in plotly's form."""
    stops = SEQUENTIAL[dark]
    return [[place / (len(stops) - 1), color] for place, color in enumerate(stops)]


def color_at(share: float, dark: bool) -> str:
    """The colour that the sequential scale shows at a share 0..1 of its range."""
    stops = SEQUENTIAL[dark]
    place = min(max(share, 0.0), 1.0) * (len(stops) - 1)
    below = min(int(place), len(stops) - 2)
    parts = zip(hex_to_rgb(stops[below]), hex_to_rgb(stops[below + 1]), strict=True)
    mixed = [round(low + (high - low) * (place - below)) for low, high in parts]
    return "#{:02x}{:02x}{:02x}".format(*mixed)


def chance_color(share: float, dark: bool) -> str:
    """The colour of what is above chance, 0..1, or below it, -1..0; at chance both begin."""
    if share >= 0:
        return color_at(share, dark)
    place = _FAINTEST + (1 - _FAINTEST) * min(-share, 1.0)
    return mixed(paper(dark), series_color(1, dark), place)


def chance_scale(dark: bool) -> list[list[float | str]]:
    """The colours of `chance_color` for shares -1..1, in plotly's form."""
    stops = SEQUENTIAL[dark]
    below: list[list[float | str]] = [
        [0.0, chance_color(-1, dark)],
        [0.5, chance_color(-1e-9, dark)],
    ]
    return below + [[(1 + at / (len(stops) - 1)) / 2, color] for at, color in enumerate(stops)]


def mixed(color: str, other: str, share: float) -> str:
    """A colour with a share of another."""
    parts = zip(hex_to_rgb(color), hex_to_rgb(other), strict=True)
    return "#{:02x}{:02x}{:02x}".format(*(round(a + (b - a) * share) for a, b in parts))


def contrast(color: str, other: str) -> float:
    """WCAG contrast ratio of two #rrggbb colours, 1..21."""
    lighter, darker = sorted((_luminance(color), _luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def text_on(background: str) -> str:
    """Black or white, whichever reads better on a cell of this colour."""
    # Pure black: black and white are the only pair with 4.5:1 on every grey.
    return max(("#000000", "#ffffff"), key=lambda text: contrast(text, background))


def themed(
    traces: Sequence[Any],
    dark: bool,
    *,
    x: Mapping[str, Any] | None = None,
    y: Mapping[str, Any] | None = None,
    **layout: Any,
) -> go.Figure:
    """A figure of traces with one x and one y axis, in the theme.

    As `apply_theme`, but faster: plotly validates once. Given axes and layout override the theme;
    the title of an axis is its text alone.
    """
    axes = {"xaxis": _axis(dark, x), "yaxis": _axis(dark, y)}
    return go.Figure(data=list(traces), layout=_merged(_layout(dark) | axes, layout))


def themed_panels(
    traces: Sequence[Any],
    titles: Sequence[str],
    dark: bool,
    *,
    x: Mapping[str, Any],
    y: Mapping[str, Any],
    **layout: Any,
) -> go.Figure:
    """As `themed`, with a panel per title from left to right; the traces name their axes.

    The title of the vertical axis stands at the first panel.
    """
    count = len(titles)
    step = (1 + _GAP / count) / count
    axes, words = {}, []
    for place, title in enumerate(titles):
        number = str(place + 1) if place else ""
        ends = [place * step, min(place * step + step - _GAP / count, 1.0)]
        y_axis = y if not place else {name: value for name, value in y.items() if name != "title"}
        axes[f"xaxis{number}"] = _axis(dark, {**x, "domain": ends, "anchor": f"y{number}"})
        axes[f"yaxis{number}"] = _axis(dark, {**y_axis, "anchor": f"x{number}"})
        words.append(
            {
                **{"text": title, "font": {"size": 16}, "showarrow": False},
                **{"x": sum(ends) / 2, "xref": "paper", "xanchor": "center"},
                **{"y": 1, "yref": "paper", "yanchor": "bottom"},
            }
        )
    changes = {"annotations": words, **layout}
    return go.Figure(data=list(traces), layout=_merged(_layout(dark) | axes, changes))


def apply_theme(
    fig: go.Figure,
    dark: bool,
    *,
    x: Mapping[str, Any] | None = None,
    y: Mapping[str, Any] | None = None,
    **layout: Any,
) -> go.Figure:
    """Put a figure with any axes into the theme, in place; arguments as for `themed`."""
    old_layout: dict[str, Any] = fig.layout.to_plotly_json()
    axes = {"xaxis": x, "yaxis": y} | {
        name: x if name[0] == "x" else y for name in old_layout if name[1:].startswith("axis")
    }
    theme = _merged(_merged(old_layout, _layout(dark)), layout)
    # All at once: each plotly update costs more than the layout of a small figure.
    fig.layout = theme | {
        name: _merged(old_layout.get(name) or {}, _axis(dark, changes))
        for name, changes in axes.items()
    }
    return fig


def _layout(dark: bool) -> dict[str, Any]:
    text = {"color": ink(dark), "size": FONT_SIZE, "family": FONT_FAMILY}
    return {
        "template": "none",
        "paper_bgcolor": CLEAR,
        "plot_bgcolor": CLEAR,
        "font": text,
        "title": {"font": {"size": 15}, "x": 0, "xref": "container", "xanchor": "left"},
        # Legends and axes above the plot reserve their own room.
        "margin": {"l": 8, "r": 8, "t": 8, "b": 8, "pad": 4},
        # Touch scrolls the page; the bar has zoom and pan.
        "dragmode": False,
        "hoverlabel": {"bgcolor": paper(dark), "bordercolor": muted(dark), "font": text},
        "legend": {"orientation": "h", "x": 0, "xanchor": "left", **_ON_TOP},
        "modebar": {"bgcolor": CLEAR, "color": muted(dark), "activecolor": primary(dark)},
    }


def _axis(dark: bool, changes: Mapping[str, Any] | None) -> dict[str, Any]:
    theme = {
        "automargin": True,
        "gridcolor": GRID[dark],
        "linecolor": GRID[dark],
        "ticks": "",
        "tickfont": {"size": SMALL_SIZE, "color": muted(dark)},
        "title": {"font": {"color": ink(dark), "size": FONT_SIZE}, "standoff": 8},
        "zeroline": False,
    }
    options = dict(changes or {})
    if "title" in options:
        options["title"] = {"text": options["title"]}
    return _merged(theme, options)


def _merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `changes`, merged recursively."""
    merged = dict(base)
    for key, value in changes.items():
        old = merged.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            value = _merged(old, value)
        merged[key] = value
    return merged


def add_provenance(fig: go.Figure, text: str) -> go.Figure:
    """Add a provenance footer, in place: exported figures travel without their page.

    `text` has model, revision, statistics, criterion, sparsity, version and date.
    """
    # Plotly positions annotations relative to the plot, so the distance to the figure's edge is the
    # margin, which must be so wide that tick labels and axis titles do not widen it.
    lines = textwrap.wrap(text, _FOOTER_CHARACTERS, break_on_hyphens=False)
    bottom = _AXIS_MARGIN + _FOOTER_LINE * len(lines)
    if fig.layout.height is not None:
        fig.update_layout(height=fig.layout.height + _FOOTER_LINE * (len(lines) + 1))
    fig.update_layout(margin={"b": bottom})
    fig.add_annotation(
        text="<br>".join(map(in_html, lines)),
        x=0,
        xref="paper",
        xanchor="left",
        y=0,
        yref="paper",
        yanchor="bottom",
        yshift=-bottom,
        showarrow=False,
        align="left",
        font={"size": 11, "color": muted(fig.layout.font.color == ink(True))},
    )
    return fig


def colorbar(title: str, dark: bool, **changes: Any) -> dict[str, Any]:
    """A slim colour bar with its title along it."""
    return {
        "title": {"text": title, "side": "right", "font": {"size": SMALL_SIZE, "color": ink(dark)}},
        "thickness": 12,
        "outlinewidth": 0,
        "tickfont": {"size": SMALL_SIZE, "color": muted(dark)},
        **changes,
    }


def _luminance(color: str) -> float:
    linear = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
        for part in (value / 255 for value in hex_to_rgb(color))
    )
    weights = (0.2126, 0.7152, 0.0722)
    return float(sum(weight * part for weight, part in zip(weights, linear, strict=True)))
