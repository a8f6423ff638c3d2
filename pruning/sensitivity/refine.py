"""Refinement: curves measured again around a plan, solved again, as long as that helps.

Costs of layers are not quite additive: what a layer costs by itself is not what it costs when the
others have lost theirs. Around a plan, with all others as in the plan, it is.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass

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
from pruning.sensitivity.points import whole

# Windows around a plan, in levels to each side that were measured: a solution that is no better in
# a wide one is looked for in a narrower one, of the same measurements.
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

    A round measures the plan's moves, solves, and measures the solution; where it is no better the
    window narrows, and when nothing helps it ends.
    """
    first = Sensitivity((curves,), aim.measure).solution(aim.rooms, aim.total)
    found = [(yield from _measured(work, first.removed, first.cost, aim))]
    for _ in range(aim.rounds):
        yield from work.measure(moved_points(aim.rooms, found[-1].removed))
        better = yield from _better(work, found[-1], aim)
        if better is None:
            break
        found.append(better)
    return found


def _better(work: Measuring, best: Round, aim: Aim) -> Generator[Progress, None, Round | None]:
    """A plan near the best that is better as measured; None where no window holds one."""
    moved = moved_curves(work.points, best.removed, aim.measure, work.samples)
    seen = {best.removed}
    for window in _WINDOWS:
        near = Sensitivity((moved.within(best.removed, window),), aim.measure)
        solution = near.solution(aim.rooms, aim.total)
        if solution.removed in seen:
            continue
        seen.add(solution.removed)
        found = yield from _measured(work, solution.removed, best.cost + solution.cost, aim)
        if found.cost < best.cost:
            return found
    return None


def _measured(
    work: Measuring, removed: Removed, predicted: float, aim: Aim
) -> Generator[Progress, None, Round]:
    yield from work.measure([whole(removed)])
    cost = cost_at(work.points, removed, aim.measure, work.samples)
    return Round(removed, predicted, cost, work.layers)
