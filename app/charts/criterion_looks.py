"""One colour and marker per criterion on every chart of series, which dashes distinguish.

Any two of the colours differ in normal sight, and two with the same marker also in simulated
protanopia and deuteranopia. Random is grey; the original model has the colour of text.
"""

import re
from collections.abc import Iterable
from functools import cache
from typing import Final

import numpy as np
from plotly.colors import hex_to_rgb

from analysis.criteria import CRITERIA, NEURON_CRITERIA, RANKABLE, Criterion, get_criterion, unified
from app.charts.names import FULL
from app.charts.theme import DASHES, SYMBOLS, Look, ink, muted

# Name -> colour on the light page, on the dark one, and place in SYMBOLS.
_PALETTE: Final[dict[str, tuple[str, str, int]]] = {
    "reap": ("#0a89c8", "#a3d8ff", 2),
    "frequency": ("#772e01", "#cd632d", 1),
    "man": ("#4f950f", "#a5e780", 0),
    "msan": ("#855902", "#de9814", 3),
    "ean": ("#582493", "#956ed2", 4),
    "damage": ("#085449", "#069c89", 5),
    "seer": ("#5d4dbe", "#9f99fd", 6),
    "gate-ean": ("#4f4a04", "#928a03", 0),
    "squared-gate-energy": ("#01468c", "#4087de", 1),
    "mone": ("#9c7c02", "#f7cc4b", 2),
    "heapr": ("#953490", "#dc82d4", 3),
    "camera-p": ("#af2c1f", "#f7806e", 4),
    "pathfinder": ("#a55bc5", "#eabdfe", 5),
    "aimer": ("#077836", "#57c173", 6),
    "magnitude": ("#0c6e8a", "#18b8e7", 0),
    "hoyer": ("#169483", "#2af0d5", 1),
    "neuron-norms": ("#850144", "#cc5a82", 2),
}
# Of criteria that are not named above, in their order: these differ from all others as well.
_SPARE: Final = (("#180030", "#4848f0", 0), ("#300018", "#786048", 3))
_RANDOM_SYMBOL, _VARIANT_SYMBOL = 5, 4
# For plans without a known criterion.
_OTHER: Final = {False: "#6b4c3b", True: "#c9a995"}
_FILLS: Final = ("", "-open", "-dot", "-open-dot")
_CRITERIA: Final = CRITERIA | NEURON_CRITERIA
_CRITERION_BY_NAME: Final = {
    word: criterion
    for criterion in (*_CRITERIA.values(), *(unified(*variant) for variant in RANKABLE))
    for word in (criterion.label, criterion.name)
}
_LONGEST_FIRST: Final = "|".join(map(re.escape, sorted(_CRITERION_BY_NAME, key=len, reverse=True)))
_SERIES: Final = re.compile(rf"({_LONGEST_FIRST})((?:,| on | \(| \+ ).*)?", re.DOTALL)


def criterion_look(name: str, dark: bool) -> Look:
    """The look of a criterion by its name, as in `looks`."""
    return _look(get_criterion(name), dark)


def looks(names: Iterable[str], dark: bool) -> dict[str, Look]:
    """The look of each series of a figure, by name.

    A series is named after its criterion (label or name) and what ranked, as "REAP on code". It has
    the colour and marker of the criterion. What follows the criterion, a corpus, a schedule or a
    repair, sets the fill of the marker and shifts the dash, in the same way for every criterion of
    the figure.
    """
    parsed = {name: _SERIES.fullmatch(name) for name in names}
    endings = sorted({match[2] or "" for match in parsed.values() if match})
    others = [name for name, match in parsed.items() if not match and name != FULL]
    look_by_name = {}
    for name, match in parsed.items():
        if match:
            look, place = _look(_CRITERION_BY_NAME[match[1]], dark), endings.index(match[2] or "")
            symbol = look.symbol + _FILLS[place % len(_FILLS)]
            dash = DASHES[(DASHES.index(look.dash) + place) % len(DASHES)]
            look_by_name[name] = Look(look.color, symbol, dash)
        elif name == FULL:
            look_by_name[name] = Look(ink(dark), "line-ns-open", "dot")
        else:
            place = others.index(name)
            dash = DASHES[place % len(DASHES)]
            look_by_name[name] = Look(_OTHER[dark], SYMBOLS[place % len(SYMBOLS)], dash)
    return look_by_name


@cache
def _look(criterion: Criterion, dark: bool) -> Look:
    # "camera-p:0.5" looks as "camera-p".
    name = criterion.name.partition(":")[0]
    palette = _PALETTE.get(name) or _spare(name)
    if name == "random":
        color, place = muted(dark), _RANDOM_SYMBOL
    elif palette is not None:
        color, place = _in_theme(palette, dark), palette[2]
    elif criterion.exponents is not None:
        color, place = _mix_colors(criterion.exponents, dark), _VARIANT_SYMBOL
    else:
        color, place = _OTHER[dark], 0
    return Look(color, SYMBOLS[place], DASHES[place % len(DASHES)])


def _spare(name: str) -> tuple[str, str, int] | None:
    """A free look for a criterion without one of its own; None if none is left."""
    unnamed = [criterion for criterion in _CRITERIA if criterion not in (*_PALETTE, "random")]
    return dict(zip(unnamed, _SPARE, strict=False)).get(name)


def _in_theme(palette: tuple[str, str, int], dark: bool) -> str:
    return palette[1] if dark else palette[0]


def _mix_colors(exponents: tuple[int, int, int], dark: bool) -> str:
    """Colour of an unnamed variant: mean of the named ones with its b.

    Weights are 1 / distance^2 of (alpha, beta).
    """
    colors, weights = [], []
    for criterion in _CRITERIA.values():
        if criterion.exponents is not None and criterion.exponents[0] == exponents[0]:
            color = _in_theme(_PALETTE[criterion.name], dark)
            colors.append(hex_to_rgb(color))
            weights.append(1 / float(np.square(np.subtract(criterion.exponents, exponents)).sum()))
    mean = np.average(colors, axis=0, weights=weights).round().astype(int)
    return "#{:02x}{:02x}{:02x}".format(*mean)
