"""Refinement: curves measured again around a plan, solved again, as long as that helps.

Costs of layers are not quite additive: what a layer costs by itself is not what it costs when the
others have lost theirs. Around a plan, with all others as in the plan, it is.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from analysis.progress import Progress
from pruning.allocation import Removed
from pruning.constraints import Room
from pruning.sensitivity.curves import (
    CostName,
    Curves,
    Sensitivity,
    cost_at,
    curves_of,
    moved_curves,
)
from pruning.sensitivity.levels import curve_points, moved_points
from pruning.sensitivity.measure import Measuring
from pruning.sensitivity.points import Point, whole

# Windows around a plan, in levels to each side that were measured.
_WINDOWS = (3, 2, 1)


@dataclass(frozen=True)
class Round:
    """What a round found."""

    removed: Removed  # the plan, which was measured
    predicted: float  # its cost by the curves that it follows from
    cost: float  # as measured
    layers: int  # layer evaluations until then, each on one batch


@dataclass(frozen=True)
class Aim:
    """The budget that is refined for."""

    rooms: tuple[Room, ...]  # what a plan may take of each layer
    total: int  # B
    rounds: int  # at most
    measure: CostName = "esap"


def measure_curves(
    work: Measuring, rooms: Sequence[Room], levels: int, measure: CostName = "esap"
) -> Generator[Progress, None, Curves]:
    """The curves of an order; rooms are those of the order, whatever a plan must respect."""
    yield from work.measure(curve_points(rooms, levels))
    found = curves_of(work.points, len(rooms), measure, work.samples)
    if found is None:
        raise ValueError("a layer has no levels, so there is nothing to measure")
    return found


def refine(work: Measuring, curves: Curves, aim: Aim) -> Generator[Progress, None, list[Round]]:
    """The plan that the curves give for a budget, then the rounds that improved on it.

    A round measures the plan's moves, solves, and measures the solutions as a whole; the best of
    them is the next plan. Where none is better, the next round moves half as far. When the smallest
    moves do not help either, it ends.
    """
    first = Sensitivity((curves,), aim.measure).solution(aim.rooms, aim.total)
    found = [(yield from _measured(work, first.removed, first.cost, aim))]
    scale, near = Fraction(1), dict[Point, None]()  # the moves that are looked at, in order
    for _ in range(aim.rounds):
        best, before = found[-1], len(near)
        near |= dict.fromkeys(moved_points(aim.rooms, best.removed, scale))
        if len(near) == before:
            break
        yield from work.measure(list(near))
        better = yield from _better(work, best, list(near), aim)
        if better is None:
            scale /= 2
        else:
            found.append(better)
            near = {}
    return found


def _better(
    work: Measuring, best: Round, near: Sequence[Point], aim: Aim
) -> Generator[Progress, None, Round | None]:
    """The best plan by these moves of the best so far, if it is better as measured.

    The cheapest plan in a wide window around it promises most, and that in a narrow one keeps more
    of its promise: all are measured.
    """
    moved = moved_curves(work.points, near, aim.measure, work.samples)
    found: dict[Removed, Round] = {}
    for window in _WINDOWS:
        inside = Sensitivity((moved.within(best.removed, window),), aim.measure)
        solution = inside.solution(aim.rooms, aim.total)
        if solution.removed not in found:
            predicted = best.cost + solution.cost
            found[solution.removed] = yield from _measured(work, solution.removed, predicted, aim)
    chosen = min(found.values(), key=lambda each: each.cost)
    return chosen if chosen.cost < best.cost else None


def _measured(
    work: Measuring, removed: Removed, predicted: float, aim: Aim
) -> Generator[Progress, None, Round]:
    yield from work.measure([whole(removed)])
    cost = cost_at(work.points, removed, aim.measure, work.samples)
    return Round(removed, predicted, cost, work.layers)
