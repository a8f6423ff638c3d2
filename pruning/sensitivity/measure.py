"""Measure points on a loaded model, and refine a plan by measuring around it.

Up to the layer that a point changes, everything equals its base. So for each batch the base runs
first, and every point starts at its own layer: bit for bit what the whole masked model gives.
Processes share the work by batches.

Refinement measures the curves again around a plan and solves again, as long as that helps: costs
of layers are not quite additive, except close to the plan, with all other layers as in the plan.
"""

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
from filelock import Timeout

from analysis.arrays import FloatArray
from analysis.errors import PlanError
from analysis.progress import Progress
from pruning.allocation import Removed
from pruning.append_log import AppendLog
from pruning.constraints import Room
from pruning.evaluate.candidate import MeasureSettings
from pruning.search.fitness import MaskedRuns, Subject
from pruning.search.streamed import Measured, StreamedRuns
from pruning.sensitivity.curves import (
    CostName,
    Curves,
    Sensitivity,
    cost_at,
    curves_of,
    moved_curves,
)
from pruning.sensitivity.points import (
    MEASURES,
    WHOLE,
    Point,
    curve_points,
    line_of,
    moved_points,
    whole,
)
from pruning.sensitivity.record import SensitivityRecord, SensitivityStore

_PATIENCE_SECONDS = 0.2  # between two looks at what other processes do


@dataclass(eq=False)
class Measuring:
    """What is measured, and what is known of it."""

    store: SensitivityStore
    record: SensitivityRecord
    samples: tuple[str, ...]  # ids of the samples, in their order
    batch_size: int  # of them in one forward
    load: Callable[[], Generator[Progress, None, Subject]]  # the model, if something is missing
    stream: StreamedRuns | None = None  # in place of `load`, for models larger than memory
    max_bytes: int | None = None  # of hidden states that are kept, see `MaskedRuns`
    layers: int = 0  # layer evaluations so far, each on one batch
    _runs: MaskedRuns | None = field(default=None, init=False)
    _streamed: dict[Removed, Measured] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.points = self.store.points(self.record, in_progress=True)

    @property
    def batches(self) -> list[tuple[str, ...]]:
        """The samples of each batch."""
        size = self.batch_size
        return [self.samples[at : at + size] for at in range(0, len(self.samples), size)]

    def finish(self, made: Mapping[str, Any]) -> SensitivityRecord:
        """Gather what was measured; the record of what is there."""
        is_gathered = self.record.is_measured and not self.store.logs(self.record)
        if self.layers or not is_gathered:
            self.record = self.store.finish(self.record, made)
        return self.record

    def measure(self, wanted: Sequence[Point]) -> Generator[Progress, None, None]:
        """Measure what is missing of these points on all samples; points of one base together."""
        waiting = list(range(len(self.batches)))
        missing = {each.removed for number in waiting for each in self._missing(wanted, number)}
        if self.stream is not None and missing:
            self._streamed = yield from self.stream.run(sorted(missing))
        while waiting:
            for number in list(waiting):
                if self._missing(wanted, number):
                    try:
                        yield from self._measure(wanted, number, len(waiting))
                    except Timeout:
                        continue
                waiting.remove(number)
            if waiting:
                done = len(self.batches) - len(waiting)
                yield Progress("waiting for other processes", done, len(self.batches), "batches")
                time.sleep(_PATIENCE_SECONDS)

    def _missing(self, wanted: Sequence[Point], number: int) -> list[Point]:
        ids = self.batches[number]
        return [point for point in wanted if not self.points.knows(point.removed, ids)]

    def _measure(
        self, wanted: Sequence[Point], number: int, waiting: int
    ) -> Generator[Progress, None, None]:
        with ExitStack() as held:
            log = held.enter_context(
                self.store.block(self.record, self.batches[number], self.points)
            )
            missing = self._missing(wanted, number)
            if missing and self._runs is None and self.stream is None:
                settings = MeasureSettings(MEASURES)
                self._runs = MaskedRuns((yield from self.load()), settings, self.max_bytes)
            if self._runs is not None:
                self._runs.forget()
            ran: set[Removed] = set()  # bases; where there is no room to keep one, once is enough
            for place, point in enumerate(missing):
                done = (len(self.batches) - waiting) * len(wanted) + place
                total = len(self.batches) * len(wanted)
                yield Progress("measuring sensitivity", done, total, "points")
                alike = sum(other.base == point.base for other in missing)
                if point.position != WHOLE and alike > 1 and point.base not in ran:
                    self._run_base(point.base, number)
                ran.add(point.base)
                self._note(point, number, log)

    def _run_base(self, base: Removed, number: int) -> None:
        """Run a base that is known already, since several points begin as it does."""
        if self._runs is not None:
            self.layers += self._runs.run(base, number)[1]
            self._runs.hold([base])

    def _run(self, point: Point, number: int) -> tuple[Mapping[str, FloatArray], int]:
        if self._runs is None:
            return self._streamed[point.removed][number]
        found = self._runs.run(point.removed, number)
        self._runs.hold([point.base])
        return found

    def _note(self, point: Point, number: int, log: AppendLog) -> None:
        values, layers = self._run(point, number)
        if not all(np.isfinite(each).all() for each in values.values()):
            raise PlanError(
                f"The model gives no finite numbers when its layers lose {list(point.removed)}; "
                "try --dtype float32, or another corpus."
            )
        self.layers += layers
        log.append(line_of(point, values, layers))
        rows = np.stack([values[name] for name in MEASURES], axis=1)
        self.points.add(point, self.batches[number], rows.tolist())


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
