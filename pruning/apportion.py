"""Apportionment: a total spread over layers by weight, in whole steps, within bounds."""

from bisect import bisect_left
from collections.abc import Sequence
from fractions import Fraction

from pruning.constraints import Room, check_total


def apportion(
    total: int, weights: Sequence[int], rooms: Sequence[Room], what: str = "experts"
) -> tuple[int, ...]:
    """Numbers that sum to `total`, in proportion to `weights`, by largest remainder.

    Each layer's quota is level * weight, held within its room, with the one level at which the
    quotas sum to `total`: what a bound keeps from one layer is spread over the others. Quotas are
    rounded down to whole steps, and the steps left go to the largest remainders, ties to the lower
    layer. All in exact fractions.

    Args:
        total: what to spread.
        weights: positive, one a layer.
        rooms: bounds, with one step for all.
        what: that is spread, in words.
    """
    if min(weights) < 1:
        raise ValueError("weights must be positive")
    check_total(total, rooms, what)
    level = _level(total, weights, rooms)
    steps = [
        (_held(level * weight, room) - room.least) / room.step
        for weight, room in zip(weights, rooms, strict=True)
    ]
    counts = [int(step) for step in steps]
    missing = (total - sum(room.least for room in rooms)) // rooms[0].step - sum(counts)
    by_remainder = sorted(range(len(rooms)), key=lambda i: (counts[i] - steps[i], i))
    for position in by_remainder[:missing]:
        counts[position] += 1
    return tuple(room.least + room.step * count for room, count in zip(rooms, counts, strict=True))


def _held(quota: Fraction, room: Room) -> Fraction:
    return min(max(quota, Fraction(room.least)), Fraction(room.most))


def _level(total: int, weights: Sequence[int], rooms: Sequence[Room]) -> Fraction:
    """The level at which the quotas sum to `total`: they grow with it, linear between bounds."""
    pairs = list(zip(weights, rooms, strict=True))

    def filled(level: Fraction) -> Fraction:
        return sum((_held(level * weight, room) for weight, room in pairs), Fraction(0))

    bounds = sorted(
        {Fraction(end, weight) for weight, room in pairs for end in (room.least, room.most)}
    )
    after = bisect_left(bounds, Fraction(total), key=filled)
    if after == 0:
        return bounds[0]
    below, above = bounds[after - 1], bounds[after]
    start, end = filled(below), filled(above)
    return below + (above - below) * (total - start) / (end - start)
