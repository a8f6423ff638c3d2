"""Which points are measured: the levels of curves, and the moves around a plan."""

from collections.abc import Iterator, Sequence
from fractions import Fraction

from pruning.allocation import Removed
from pruning.constraints import Room
from pruning.sensitivity.points import Point, whole

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
