"""Measure points on a loaded model, and refine a plan by measuring around it.

Up to the layer that a point changes, everything equals its base. So for each batch the base runs
first, and every point starts at its own layer: bit for bit what the whole masked model gives.
Processes share the work by batches: whoever is free takes the next one, or, where layers are
streamed, the processes of a launcher take theirs in turn, as each passes through the layers once.

Refinement measures the curves again around a plan and solves again, as long as that helps: costs
of layers are not quite additive, except close to the plan, with all other layers as in the plan.
"""

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
from filelock import Timeout

from analysis.calibration.distributed import Processes
from analysis.errors import PlanError
from analysis.progress import Progress
from pruning.measures.append_log import AppendLog
from pruning.measures.curves import Curves, Sensitivity, cost_at, curves_of, moved_curves
from pruning.measures.names import Across, CostName
from pruning.measures.points import (
    MEASURES,
    WHOLE,
    Point,
    curve_points,
    line_of,
    moved_points,
    whole_point,
)
from pruning.plan.allocation import Removed
from pruning.plan.constraints import Room
from pruning.records.sensitivity import SensitivityRecord, SensitivityStore
from pruning.search.fitness import MaskedRuns, Measured, StreamedRuns

Runs = MaskedRuns | StreamedRuns
_PATIENCE_SECONDS = 0.2  # between two checks whether other processes are done


@dataclass(eq=False)
class Measuring:
    """A measurement in progress, and the points that are known."""

    store: SensitivityStore
    record: SensitivityRecord
    samples: tuple[str, ...]  # ids, in order
    batch_size: int  # samples per forward
    load: Callable[[], Generator[Progress, None, Runs]]  # called if points are missing
    processes: Processes = field(default_factory=Processes)  # that take the batches in turn
    documents: Mapping[str, int] = field(default_factory=dict)  # of the samples, where known
    layers: int = 0  # layer evaluations so far, each on one batch
    _runs: Runs | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.points = self.store.points(self.record, in_progress=True)
        self.points.add_documents(self.documents)

    @property
    def batches(self) -> list[tuple[str, ...]]:
        """The samples of each batch."""
        size = self.batch_size
        return [self.samples[at : at + size] for at in range(0, len(self.samples), size)]

    def release(self) -> None:
        """Free what was loaded; further points would load it again."""
        self._runs = None

    def finish(self, run_facts: Mapping[str, Any]) -> SensitivityRecord:
        """Gather the logs; the resulting record."""
        if self.layers or not self.record.is_measured or self.store.logs(self.record):
            self.record = self.store.finish(self.record, run_facts)
        return self.record

    def measure(self, points: Sequence[Point]) -> Generator[Progress, None, None]:
        """Measure the missing ones of these points on all samples, points of one base together."""
        with self.processes.together():
            yield from self._measure_own(points)
        if self.processes.world > 1:
            with self.processes.together():  # nobody gathers the logs before all have read them
                self.points = self.store.points(self.record, in_progress=True)

    def _measure_own(self, points: Sequence[Point]) -> Generator[Progress, None, None]:
        """As `measure`, on the batches of this process."""
        waiting = list(range(self.processes.rank, len(self.batches), self.processes.world))
        count = len(waiting)
        missing = {each.removed for number in waiting for each in self._missing(points, number)}
        if missing:
            self._runs = self._runs or (yield from self.load())
            yield from self._runs.prepare(sorted(missing))
        while waiting:
            for number in list(waiting):
                if self._missing(points, number):
                    try:
                        at = (count - len(waiting), count)
                        yield from self._measure_batch(points, number, at)
                    except Timeout:
                        continue
                waiting.remove(number)
            if waiting:
                done = count - len(waiting)
                yield Progress("waiting for other processes", done, count, "batches")
                time.sleep(_PATIENCE_SECONDS)

    def _missing(self, points: Sequence[Point], number: int) -> list[Point]:
        ids = self.batches[number]
        return [point for point in points if not self.points.knows(point.removed, ids)]

    def _measure_batch(
        self, points: Sequence[Point], number: int, at: tuple[int, int]
    ) -> Generator[Progress, None, None]:
        """Measure on a batch; `at` says how many batches are done, and of how many."""
        with self.store.block(self.record, self.batches[number], self.points) as log:
            missing = self._missing(points, number)
            if not missing or self._runs is None:
                return  # another process measured them
            self._runs.forget()
            ran: set[Removed] = set()  # a base runs once, also if there is no room to keep it
            for place, point in enumerate(missing):
                done, total = (each * len(points) for each in at)
                yield Progress("measuring sensitivity", done + place, total, "points")
                alike = sum(other.base == point.base for other in missing)
                # A known base runs again if several points start from it.
                if point.position != WHOLE and alike > 1 and point.base not in ran:
                    self.layers += self._runs.run_base(point.base, number)
                ran.add(point.base)
                self._add(point, number, self._runs.run(point.removed, number), log)
                self._runs.hold([point.base])

    def _add(self, point: Point, number: int, measured: Measured, log: AppendLog) -> None:
        values, layers = measured
        if not all(np.isfinite(each).all() for each in values.values()):
            raise PlanError(
                f"The model gives no finite numbers when its layers lose {list(point.removed)}; "
                "try --dtype float32, or another corpus."
            )
        self.layers += layers
        log.append(line_of(point, values, layers))
        rows = np.stack([values[name] for name in MEASURES], axis=1)
        self.points.add(point, self.batches[number], rows.tolist())


# Windows around a plan, in measured levels to each side.
_WINDOWS = (3, 2, 1)


@dataclass(frozen=True)
class Round:
    """The plan of a round."""

    removed: Removed
    predicted: float  # cost by the curves that it follows from
    cost: float  # measured cost
    layers: int  # layer evaluations so far, each on one batch


@dataclass(frozen=True)
class Aim:
    """The budget to refine a plan for."""

    rooms: tuple[Room, ...]  # what a plan may remove from each layer
    total: int  # B
    rounds: int  # at most
    measure: CostName = "esap"
    across: Across = "mean"  # how costs of several corpora combine

    def over(self, curves: Sequence[Curves]) -> Sensitivity:
        """The curves of every corpus, for this aim."""
        return Sensitivity(tuple(curves), self.measure, self.across)


def measure_curves(
    work: Measuring, rooms: Sequence[Room], levels: int, measure: CostName = "esap"
) -> Generator[Progress, None, Curves]:
    """The curves of an order; `rooms` are those of the order, without constraints of a plan."""
    yield from work.measure(curve_points(rooms, levels))
    curves = curves_of(work.points, len(rooms), measure, work.samples)
    if curves is None:
        raise ValueError("a layer has no levels, so there is nothing to measure")
    return curves


def refine(
    works: Sequence[Measuring], curves: Sequence[Curves], aim: Aim
) -> Generator[Progress, None, list[Round]]:
    """The plan that the curves give for a budget, then the rounds that improved on it.

    `works` and `curves` are those of each corpus; all of them measure the same plans.

    A round measures the plan's moves, solves, and measures the solutions as a whole; the best one
    is the next plan. If none is better, the next round moves half as far, and so on until the
    smallest moves do not help either.
    """
    first = aim.over(curves).solution(aim.rooms, aim.total)
    rounds = [(yield from _measure_round(works, first.removed, first.cost, aim))]
    scale, near = Fraction(1), dict[Point, None]()  # moves, in order
    for _ in range(aim.rounds):
        best, before = rounds[-1], len(near)
        near |= dict.fromkeys(moved_points(aim.rooms, best.removed, scale))
        if len(near) == before:
            break
        for work in works:
            yield from work.measure(list(near))
        better = yield from _better(works, best, list(near), aim)
        if better is None:
            scale /= 2
        else:
            rounds.append(better)
            near = {}
    return rounds


def _better(
    works: Sequence[Measuring], best: Round, near: Sequence[Point], aim: Aim
) -> Generator[Progress, None, Round | None]:
    """The best plan by these moves of the best so far, if it measures better.

    The cheapest plan in a wide window promises most, that in a narrow one is predicted more
    precisely, so all are measured.
    """
    moved = [moved_curves(work.points, near, aim.measure, work.samples) for work in works]
    rounds: dict[Removed, Round] = {}
    for window in _WINDOWS:
        inside = aim.over([each.within(best.removed, window) for each in moved])
        removed, cost = inside.solution(aim.rooms, aim.total)[1:]
        if removed not in rounds:
            rounds[removed] = yield from _measure_round(works, removed, cost, aim)
    chosen = min(rounds.values(), key=lambda each: each.cost)
    return chosen if chosen.cost < best.cost else None


def _measure_round(
    works: Sequence[Measuring], removed: Removed, predicted: float, aim: Aim
) -> Generator[Progress, None, Round]:
    for work in works:
        yield from work.measure([whole_point(removed)])
    costs = [cost_at(work.points, removed, aim.measure, work.samples) for work in works]
    return Round(removed, predicted, aim.over(()).over(costs), sum(n.layers for n in works))
