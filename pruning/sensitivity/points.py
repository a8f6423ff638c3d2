"""Points: allocations whose loss was measured on every sample, and which to measure.

A point is a base allocation in which one layer loses a different number; the base of a curve
removes nothing. `sensitivity.parquet` has a row per point and sample.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from analysis.arrays import FloatArray
from analysis.corpora import TokenSequences
from analysis.lazy import pd
from pruning.allocation import Removed
from pruning.constraints import Room

MEASURES = ("esap", "kl", "nll")
COLUMNS: Mapping[str, str] = {
    "base": "object",  # removed from each layer, joined by points; empty where nothing is
    "layer": "int64",  # decoder index of the layer that differs from the base; -1: none does
    "removed": "int64",  # what that layer loses; of the base itself the sum
    "sample": "object",  # of `sample_ids`
    **dict.fromkeys(MEASURES, "float64"),  # means over the scored positions of the sample
}
WHOLE = -1
_DIGITS = 16


class Point(NamedTuple):
    """An allocation to measure."""

    base: Removed  # removed from each layer
    position: int  # of the layer that differs from it, among those with experts; WHOLE: none does
    gone: int  # what that layer loses; of the base itself the sum

    @property
    def removed(self) -> Removed:
        """What each layer loses."""
        if self.position == WHOLE:
            return self.base
        return (*self.base[: self.position], self.gone, *self.base[self.position + 1 :])


def whole(removed: Sequence[int]) -> Point:
    """The point of an allocation by itself."""
    return Point(tuple(removed), WHOLE, sum(removed))


def sample_ids(sequences: TokenSequences) -> tuple[str, ...]:
    """16 hex digits for each sample: of its tokens, and of what counts and belongs together."""
    found = []
    for number, row in enumerate(sequences.rows):
        sha = hashlib.sha256(row.astype("<i4").tobytes())
        for name, parts in (("counted", sequences.counted), ("positions", sequences.positions)):
            if parts is not None:
                sha.update(name.encode() + parts[number].astype("<i4").tobytes())
        found.append(sha.hexdigest()[:_DIGITS])
    return tuple(found)


class Points:
    """What is known: allocation and sample -> values of MEASURES."""

    def __init__(self, layers: Sequence[int]) -> None:
        self._layers = tuple(layers)  # decoder indices of the layers with experts
        self._named: dict[Removed, Point] = {}
        self._values: dict[Removed, dict[str, tuple[float, ...]]] = {}

    def __len__(self) -> int:
        return len(self._values)

    def add(self, point: Point, samples: Iterable[str], values: Iterable[Sequence[float]]) -> None:
        """Take in values of a point, one tuple a sample; what is known stays."""
        self._named.setdefault(point.removed, point)
        held = self._values.setdefault(point.removed, {})
        for sample, each in zip(samples, values, strict=True):
            held.setdefault(sample, tuple(each))

    def knows(self, removed: Removed, samples: Iterable[str]) -> bool:
        """Whether an allocation was measured on all of these samples."""
        held = self._values.get(removed, {})
        return all(sample in held for sample in samples)

    def values(self, removed: Removed, samples: Sequence[str]) -> FloatArray:
        """(samples, measures) of an allocation that was measured on all of them."""
        held = self._values[removed]
        return np.array([held[sample] for sample in samples], dtype=np.float64)

    def samples(self) -> tuple[str, ...]:
        """The samples on which the original was measured, in the order in which they came."""
        return tuple(self._values.get((0,) * len(self._layers), {}))

    def on_all(self, samples: Sequence[str]) -> Iterator[Point]:
        """The points that were measured on all of these samples, in the order of their names."""
        for removed in sorted(self._named):
            if self.knows(removed, samples):
                yield self._named[removed]

    def table(self) -> pd.DataFrame:
        """Table of COLUMNS."""
        rows = []
        for removed, point in self._named.items():
            base = ".".join(map(str, point.base)) if any(point.base) else ""
            layer = WHOLE if point.position == WHOLE else self._layers[point.position]
            for sample, values in self._values[removed].items():
                rows.append((base, layer, point.gone, sample, *values))
        return pd.DataFrame(rows, columns=list(COLUMNS)).astype(dict(COLUMNS))

    def add_table(self, table: pd.DataFrame) -> None:
        """Take in a table of COLUMNS; a ValueError where it is of other layers."""
        places = {layer: position for position, layer in enumerate(self._layers)} | {WHOLE: WHOLE}
        for row in table[list(COLUMNS)].itertuples(index=False, name=None):
            base, layer, gone, sample, *values = row
            self.add(self._point(str(base), places, layer, gone), [str(sample)], [values])

    def _point(self, base: str, places: Mapping[int, int], layer: int, gone: int) -> Point:
        removed = tuple(map(int, base.split("."))) if base else (0,) * len(self._layers)
        if len(removed) != len(self._layers) or layer not in places:
            raise ValueError("it has other layers than the model")
        return Point(removed, places[layer], int(gone))

    def add_line(self, raw: Any, samples: Sequence[str]) -> None:
        """Take in a line of a log, see `line_of`; ValueError, KeyError or TypeError if it is none.

        `samples` are those that the log is about.
        """
        point = Point(tuple(map(int, raw["base"])), int(raw["position"]), int(raw["removed"]))
        values = np.array([raw[name] for name in MEASURES], dtype=np.float64).T
        if len(point.base) != len(self._layers) or not np.isfinite(values).all():
            raise ValueError("it is of other layers, or no finite number")
        self.add(point, samples, values.tolist())


def line_of(point: Point, values: Mapping[str, FloatArray], layers: int) -> dict[str, Any]:
    """A measured point as a line of a log; `layers` are those that ran."""
    return {
        "base": list(point.base),
        "position": point.position,
        "removed": point.gone,
        **{name: values[name].tolist() for name in MEASURES},
        "layers": layers,
    }


DEFAULT_LEVELS = 8
MOVES = (-8, -4, -2, 2, 4, 8)
# Steps of a refinement: of a layer's experts or neurons, so that they are as large in every model.
_PARTS = 32


def curve_points(rooms: Sequence[Room], levels: int) -> list[Point]:
    """The original, and each layer alone at 1/levels, 2/levels ... of its size, as far as it can.

    The last level is the most that the layer can lose; levels are the nearest numbers that can go.
    """
    nothing = (0,) * len(rooms)
    found = [whole(nothing)]
    for position, room in enumerate(rooms):
        shares = (int(Fraction(room.size * part, levels)) for part in range(1, levels + 1))
        gone = {room.nearest(share) for share in shares} | {room.most}
        found += [Point(nothing, position, number) for number in sorted(gone - {0})]
    return found


def moved_points(
    rooms: Sequence[Room], base: Removed, scale: Fraction = Fraction(1)
) -> list[Point]:
    """A plan, and the plan with one layer moved by each of MOVES, as far as its room goes.

    A move is a step of 1/32 of the layer, times `scale`; to the nearest number that can go.
    """
    return [whole(base), *_moved(rooms, base, scale)]


def _moved(rooms: Sequence[Room], base: Removed, scale: Fraction) -> Iterator[Point]:
    for position, (room, own) in enumerate(zip(rooms, base, strict=True)):
        step = max(1, round(room.size / _PARTS / room.step)) * room.step
        gone = {room.nearest(own + int(step * move * scale)) for move in MOVES}
        for number in sorted(gone - {own}):
            yield Point(base, position, number)
