"""Points: allocations whose loss was measured on every sample, and which to measure.

A point is a base allocation in which one layer loses a different number; the base of a curve
removes nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pruning.measures.result import check_possible

if TYPE_CHECKING:
    from analysis.corpora.sequences import TokenSequences
    from analysis.numbers.arrays import FloatArray
    from pruning.plan.units import Removed, Units

MEASURES = ("esap", "kl", "nll")
WHOLE = -1
_DIGITS = 16


class Point(NamedTuple):
    """An allocation to measure."""

    base: Removed  # removed from each layer
    position: int  # of the layer that differs from it, among those with experts; WHOLE if none
    level: int  # what that layer loses; the sum of the base if none

    @property
    def removed(self) -> Removed:
        """What each layer loses."""
        if self.position == WHOLE:
            return self.base
        return (*self.base[: self.position], self.level, *self.base[self.position + 1 :])


def whole_point(removed: Sequence[int]) -> Point:
    """The point of a whole allocation."""
    return Point(tuple(removed), WHOLE, sum(removed))


def sample_ids(sequences: TokenSequences) -> tuple[str, ...]:
    """16 hex digits per sample: a hash of its tokens, counted positions and document positions."""
    ids = []
    for number, row in enumerate(sequences.rows):
        sha = hashlib.sha256(row.astype("<i4").tobytes())
        for name, parts in (("counted", sequences.counted), ("positions", sequences.positions)):
            if parts is not None:
                sha.update(name.encode() + parts[number].astype("<i4").tobytes())
        ids.append(sha.hexdigest()[:_DIGITS])
    return tuple(ids)


class Points:
    """Measured values: allocation and sample -> MEASURES."""

    def __init__(self, sizes: Mapping[int, int]) -> None:
        """`sizes` are experts or neurons of each layer with experts, by decoder index."""
        self._sizes = tuple(sizes.values())
        self._points: dict[Removed, Point] = {}
        self._values: dict[Removed, dict[str, tuple[float, ...]]] = {}
        self._documents: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._values)

    def add(self, point: Point, samples: Iterable[str], values: Iterable[Sequence[float]]) -> None:
        """Add values of a point, one tuple per sample; known values stay.

        Raises:
            ValueError: a value or a number cannot be.
        """
        for level, size in zip(point.removed, self._sizes, strict=True):
            if not 0 <= level <= size:
                raise ValueError(f"it removes {level} of {size} in a layer")
        self._points.setdefault(point.removed, point)
        by_sample = self._values.setdefault(point.removed, {})
        for sample, row in zip(samples, values, strict=True):
            for name, value in zip(MEASURES, row, strict=True):
                check_possible(name, value)
            by_sample.setdefault(sample, tuple(row))

    def add_documents(self, documents: Mapping[str, int | None]) -> None:
        """Say of which documents samples are, by id, where known; what is said already stays."""
        new = {sample: number for sample, number in documents.items() if number is not None}
        self._documents = new | self._documents

    def documents(self, samples: Sequence[str]) -> tuple[int, ...] | None:
        """The document of each sample; None unless all are known."""
        numbers = [self._documents[sample] for sample in samples if sample in self._documents]
        return tuple(numbers) if len(numbers) == len(samples) else None

    def knows(self, removed: Removed, samples: Iterable[str]) -> bool:
        """Whether an allocation was measured on all of these samples."""
        by_sample = self._values.get(removed, {})
        return all(sample in by_sample for sample in samples)

    def values(self, removed: Removed, samples: Sequence[str]) -> FloatArray:
        """(samples, measures) of an allocation; all samples must be known."""
        by_sample = self._values[removed]
        return np.array([by_sample[sample] for sample in samples], dtype=np.float64)

    def known(self, removed: Removed, samples: Sequence[str]) -> dict[str, tuple[float, ...]]:
        """The values of an allocation on those of these samples that are known."""
        by_sample = self._values.get(removed, {})
        return {sample: by_sample[sample] for sample in samples if sample in by_sample}

    def samples(self) -> tuple[str, ...]:
        """The samples on which the original was measured, in order of measurement."""
        return tuple(self._values.get((0,) * len(self._sizes), {}))

    def on_all(self, samples: Sequence[str]) -> Iterator[Point]:
        """The points measured on all of these samples, by allocation."""
        for removed in sorted(self._points):
            if self.knows(removed, samples):
                yield self._points[removed]


DEFAULT_LEVELS = 8
MOVES = (-8, -4, -2, 2, 4, 8)
# A refinement moves by parts of a layer's experts or neurons, for steps alike in every model.
_PARTS = 32


def curve_points(units: Units, levels: int) -> list[Point]:
    """The original, and each layer alone at 1/levels, 2/levels ... of its size.

    Levels are rounded to what the layer can lose; the last is the most.
    """
    nothing = (0,) * len(units.sizes)
    parts = range(1, levels + 1)
    shares = (units.nearest([size * part // levels for size in units.sizes]) for part in parts)
    points = [whole_point(nothing)]
    for position, counts in enumerate(zip(*shares, units.most, strict=True)):
        points += [Point(nothing, position, number) for number in sorted({*counts} - {0})]
    return points


def fewer_points(units: Units, levels: int) -> list[Point]:
    """The same of experts per token: also one less in each layer, whatever the levels."""
    points, nothing = curve_points(units, levels), (0,) * len(units.sizes)
    ones = (Point(nothing, row, 1) for row, most in enumerate(units.most) if most)
    return list(dict.fromkeys([*points, *ones]))


def moved_points(units: Units, base: Removed, scale: Fraction = Fraction(1)) -> list[Point]:
    """A plan, and the plan with one layer moved by each of MOVES, within its bounds.

    A move counts steps of 1/32 of the layer, times `scale`, rounded to what the layer can lose.
    """
    steps = [max(1, round(size / _PARTS / units.step)) * units.step for size in units.sizes]
    points = [whole_point(base)]
    moved = (
        units.nearest([n + int(step * move * scale) for n, step in zip(base, steps, strict=True)])
        for move in MOVES
    )
    for position, (level, *counts) in enumerate(zip(base, *moved, strict=True)):
        points += [Point(base, position, number) for number in sorted({*counts} - {level})]
    return points
