"""Measure points on a loaded model, and refine a plan by measuring around it.

Up to the layer that a point changes, everything equals its base. So for each batch the base runs
first, and every point starts at its own layer: bit for bit what the whole masked model gives.
Commands share the work by batches: whoever is free takes the next one. The processes of a launcher
make the same calls and know the same points, which the first one reads and writes. They share the
layers, or the batches where layers are streamed, as each passes through the layers once.

Refinement measures the curves again around a plan and solves again, as long as that helps: costs
of layers are not quite additive, except close to the plan, with all other layers as in the plan.
"""

import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property, partial
from typing import Any, Final

import numpy as np
from filelock import Timeout

from analysis.calibration.distributed import Processes
from analysis.errors import PlanError
from analysis.progress import LOADING, RUNNING_ORIGINAL, Costs, Parts, Progress, Tally, scaled
from pruning.measurements.block import Block, SampleSet
from pruning.measures.allocator import Solution
from pruning.measures.curves import Curves, Sensitivity, cost_at, curves_of, moved_curves
from pruning.measures.names import Across, CostName
from pruning.measures.points import (
    MEASURES,
    WHOLE,
    Point,
    Points,
    moved_points,
    sample_ids,
    whole_point,
)
from pruning.measures.samples import Samples
from pruning.plan.plan import PruningPlan
from pruning.plan.units import Removed, Units
from pruning.records.sensitivity import SensitivityRecord, SensitivityStore
from pruning.search.ahead import ahead_of
from pruning.search.costs import RunCosts
from pruning.search.runs import Measurement, Runs

MEASURING: Final = "measuring sensitivity"
_THROUGH: Final = "layers"  # the pass through streamed ones
_GOLDEN: Final = (5**0.5 - 1) / 2
_PATIENCE_SECONDS = 0.2  # between two checks whether other processes are done


@dataclass(eq=False)
class Measuring:
    """A measurement in progress, and the points that are known.

    Each point of a batch goes to the table as soon as it is measured, so a killed run loses nothing
    but the point in progress.
    """

    store: SensitivityStore
    record: SensitivityRecord
    texts: Samples  # in batches
    where: SampleSet  # what the table calls them
    plan_of: Callable[[Removed], PruningPlan]  # removed per layer -> plan
    load: Callable[[], Generator[Progress, None, Runs]]  # called if points are missing
    made: Mapping[str, Any] = field(default_factory=dict)  # how numbers are, see `how_made`
    costs: RunCosts = field(default_factory=RunCosts)  # on all samples
    stay: Removed | None = None  # see `Order.stay`
    is_loaded: Callable[[], bool] = lambda: False  # whether the model is, for another corpus
    layers: int = 0  # layer evaluations so far, each on one batch
    processes: Processes = field(default_factory=Processes)  # that measure together
    _runs: Runs | None = field(default=None, init=False)
    _tally: Tally = field(default_factory=lambda: Tally({}), init=False)
    _asked: dict[Point, str] = field(default_factory=dict, init=False)  # digests of their plans

    def __post_init__(self) -> None:
        processes, known = self.processes, ""
        with processes.together():
            if processes.is_first:
                self.store.table.refresh()
                self.record = self.store.find(self.record)
                known = self.record.to_line() if self.record.is_measured else ""
        if processes.world > 1 and (known := processes.share(known)):
            self.record = self.record.from_json(known, self.record.record_id)
        self.points = Points(dict(self.record.layers))
        for documents in (dict(self.record.samples), self._documents):
            self.points.add_documents(documents)
        listed = self.record.plans
        self._digests = {point.removed: plan for point, plan in listed.items()}
        for samples in (tuple(dict(self.record.samples)), self.samples):
            self._learn(list(listed), samples)

    @cached_property
    def samples(self) -> tuple[str, ...]:
        """The ids of the samples, in order."""
        return sample_ids(self.texts.sequences)

    @cached_property
    def _documents(self) -> dict[str, int | None]:
        """Id -> document of each sample, of equal samples the first."""
        documents = self.texts.sequences.documents or (None,) * len(self.samples)
        pairs = list(zip(self.samples, documents, strict=True))
        return dict.fromkeys(self.samples) | dict(reversed(pairs))

    @property
    def batches(self) -> list[tuple[str, ...]]:
        """The samples of each batch."""
        size = self.texts.batch_size
        return [self.samples[at : at + size] for at in range(0, len(self.samples), size)]

    def release(self) -> None:
        """Free what was loaded; further points would load it again."""
        self._runs = None

    def expected(self, points: Sequence[Point]) -> Costs:
        """What it costs to measure those of these points that are missing."""
        self._learn(points)
        return self._parts(points, range(len(self.batches)))[0].whole.total

    def finish(self) -> SensitivityRecord:
        """Write what was measured, if that is new; the resulting record.

        Of what was refused before anything ran, nothing is written. The first process writes.
        """
        if not self.processes.is_first:
            return self.record
        asked, samples = self._asked, self.samples
        is_known = asked and all(self.points.knows(point.removed, samples) for point in asked)
        is_listed = asked.keys() <= self.record.plans.keys() and (
            {sample for sample, _ in self.record.samples}.issuperset(samples)
        )
        # A record that lists points whose numbers are gone is written without them.
        is_whole = is_listed and self.store.is_whole(self.record)
        if self.layers or (is_known and not is_whole):
            ran = self.layers > 0 or is_listed
            self.record = self.store.finish(self.record, self._documents, asked, self.made, ran=ran)
        return self.record

    def measure(self, points: Sequence[Point]) -> Generator[Progress, None, None]:
        """Measure the missing ones of these points on all samples, points of one base together."""
        with self.processes.together():
            if self.processes.is_first:
                self._asked |= {point: self._digest(point.removed) for point in points}
        self._learn(points)
        waiting = list(range(len(self.batches)))
        count = len(waiting)
        missing = {point.removed for number in waiting for point in self._missing(points, number)}
        parts, self._tally = self._parts(points, waiting)
        if missing:
            self._runs = self._runs or (yield from parts.by_phase(self.load()))
            yield from parts.run(_THROUGH, self._runs.prepare(sorted(missing)))
        yield from parts.by_phase(self._measure_waiting(points, waiting, count))

    def _digest(self, removed: Removed) -> str:
        """Of the plan of an allocation; plans of neurons take a while, so each is made once."""
        if removed not in self._digests:
            self._digests[removed] = self.plan_of(removed).digest
        return self._digests[removed]

    def _learn(self, points: Sequence[Point], samples: Sequence[str] = ()) -> None:
        """Look up what the table of the first process knows, in all of them.

        Of these points on some samples, by default those that they are measured on.
        """
        processes, samples = self.processes, samples or self.samples
        unknown = [point for point in points if not self.points.knows(point.removed, samples)]
        with processes.together():
            if processes.is_first:
                plans = {point: self._digest(point.removed) for point in unknown}
                self.store.add_known(self.points, self.record, plans, samples)
        if processes.world == 1:
            return
        found = [self.points.known(point.removed, samples) for point in unknown]
        # JSON preserves floats exactly.
        for point, values in zip(unknown, processes.share(found), strict=True):
            if values:
                self.points.add(point, values, values.values())

    def _measure_waiting(
        self, points: Sequence[Point], waiting: Sequence[int], count: int
    ) -> Generator[Progress, None, None]:
        at_once = len(waiting) if self._runs and self._runs.ahead else 1
        while waiting:
            done: set[int] = set()
            for start in range(0, len(waiting), at_once):
                with self._claimed(points, waiting[start : start + at_once]) as claimed:
                    at = (count - len(waiting) + len(done), count)
                    yield from self._measure_batches(points, claimed, at)
                    done.update(claimed)
            waiting = [number for number in waiting if number not in done]
            if waiting:
                left = count - len(waiting)
                yield Progress("waiting for other processes", left, count, "batches")
                time.sleep(_PATIENCE_SECONDS)
        total = count * len(points)
        yield Progress(MEASURING, total, total, "points", whole=self._tally.whole)

    def _parts(self, points: Sequence[Point], batches: Sequence[int]) -> tuple[Parts, Tally]:
        """Loading, the original, and the missing points of these batches."""
        total = dict.fromkeys(self.costs.run(WHOLE), 0.0)
        for number in batches:
            for point in [] if self.costs.by_layers else self._missing(points, number):
                for kind, amount in self._cost(point).items():
                    total[kind] += amount
        parts: dict[str, Costs] = {MEASURING: total}
        if self._runs is None and any(total.values()):
            if not self.is_loaded():
                parts[LOADING] = {"read": self.costs.reading}
            parts[RUNNING_ORIGINAL] = {"multiply": sum(self.costs.layers)}
        if self.costs.by_layers:  # one pass, which then states its own costs
            missing = dict.fromkeys(point for n in batches for point in self._missing(points, n))
            parts[_THROUGH] = self.costs.one_pass([point.position for point in missing])
        return Parts(parts), Tally(total)

    def _cost(self, point: Point) -> dict[str, float]:
        """What a point costs on a batch, of which all are alike."""
        costs = self.costs.run(point.position)
        return {kind: amount / len(self.batches) for kind, amount in costs.items()}

    def _missing(self, points: Sequence[Point], number: int) -> list[Point]:
        ids = self.batches[number]
        return [point for point in points if not self.points.knows(point.removed, ids)]

    @contextmanager
    def _claimed(self, points: Sequence[Point], numbers: Sequence[int]) -> Iterator[list[int]]:
        """Those of these batches that no other command measures, nor will inside."""
        claimed: list[int] = []
        with ExitStack() as claims:
            with self.processes.together():
                for number in numbers if self.processes.is_first else ():
                    piece = {"record": self.record.digest, "samples": list(self.batches[number])}
                    with suppress(Timeout):
                        if self._missing(points, number):
                            claims.enter_context(self.store.table.claimed(**piece))
                        claimed.append(number)
            yield self.processes.share(claimed)

    def _measure_batches(
        self, points: Sequence[Point], numbers: Sequence[int], at: tuple[int, int]
    ) -> Generator[Progress, None, None]:
        """Measure on batches; `at` says how many batches are done, and of how many."""
        runs = self._runs
        if runs is None or not list(self._steps(points, numbers)):
            return
        with self.processes.together():
            if self.processes.is_first:
                self.store.table.refresh()  # another command may have measured them
        self._learn(points)
        steps, begin = list(self._steps(points, numbers)), partial(self._begin, runs)
        done, total = (batch * len(points) for batch in at)
        with runs.open():
            for place, step in enumerate(ahead_of(steps, begin, runs.ahead)):
                whole = self._tally.whole
                yield Progress(MEASURING, done + place, total, "points", whole=whole)
                self._keep(step, runs.run(step.point.removed, step.number))
                for kind, amount in self._cost(step.point).items():
                    self._tally.add(kind, amount)

    def _steps(self, points: Sequence[Point], numbers: Sequence[int]) -> Iterator["_Step"]:
        """What is missing on each of some batches."""
        for number in numbers:
            missing = self._missing(points, number)
            if self._runs and self._runs.ahead:
                missing = _mixed(missing)
            alike, ran = Counter(point.base for point in missing), set[Removed]()
            for place, point in enumerate(missing):
                # A known base runs again if several points start from it, once, also if there is
                # no room to keep it.
                again = point.position != WHOLE and alike[point.base] > 1 and point.base not in ran
                ran.add(point.base)
                yield _Step(number, point, place == 0, place + 1 == len(missing), again)

    def _begin(self, runs: Runs, step: "_Step") -> None:
        if step.is_first:
            runs.forget()
        if step.runs_base:
            self.layers += runs.run_base(step.point.base, step.number)
        runs.begin(step.point.removed, step.number)
        runs.hold([step.point.base])

    def _keep(self, step: "_Step", measured: Measurement) -> None:
        """What was measured is known from here on; the first process writes it."""
        sums, layers = measured
        if not all(np.isfinite(sum_.sums).all() for sum_ in sums.values()):
            raise PlanError(
                f"The model gives no finite numbers when its layers lose "
                f"{list(step.point.removed)}; try --dtype float32, or another corpus."
            )
        self.layers += layers
        means = np.stack([sums[name].means for name in MEASURES], axis=1)
        self.points.add(step.point, self.batches[step.number], means.tolist())
        if self.processes.is_first:
            block = self._block(step.point, step.number, measured)
            self.store.table.add([block], sync=step.is_last)

    def _block(self, point: Point, number: int, measured: Measurement) -> Block:
        """What was measured of a point on a batch."""
        sums, layers = measured
        samples = self.batches[number]
        documents, start = self.texts.sequences.documents, number * self.texts.batch_size
        some = documents and documents[start : start + len(samples)]
        sizes = [size for _, size in self.record.layers]
        return Block(
            self.record.model.identity,
            self._digest(point.removed),
            self.stay or tuple(n - gone for n, gone in zip(sizes, point.removed, strict=True)),
            self.where,
            len(self.samples),
            samples,
            {name: replace(sums[name], documents=some) for name in MEASURES},
            {**self.made, "layers": layers},
        )


def _mixed(points: Sequence[Point]) -> list[Point]:
    """Whole allocations first, then points of early and late layers in turn.

    Where processes share the layers, the first ones run those of early layers alone: one layer
    after the other, they would wait for each other. Multiples of the golden ratio spread evenly.
    """
    order = sorted(range(len(points)), key=lambda number: number * _GOLDEN % 1)
    return sorted((points[number] for number in order), key=lambda point: point.position != WHOLE)


@dataclass(frozen=True, slots=True)
class _Step:
    """A point to measure on a batch."""

    number: int  # of the batch
    point: Point
    is_first: bool  # of the batch
    is_last: bool
    runs_base: bool  # before the point


# Windows around a plan, in measured levels to each side.
_WINDOWS = (3, 2, 1)
_PLANS_OF_WINDOWS = 2  # that are not known, of these windows: their mean on trained models


@dataclass(frozen=True)
class Round:
    """The plan of a round."""

    removed: Removed
    predicted: float  # cost by the curves that it follows from
    cost: float  # measured cost
    layers: int  # layer evaluations so far, each on one batch


@dataclass
class NewPlans:
    """How many plans the windows of a round give that are not known, in the rounds so far."""

    rounds: int = 0
    plans: int = 0

    @property
    def expected(self) -> float:
        """Of the next round."""
        return self.plans / self.rounds if self.rounds else _PLANS_OF_WINDOWS

    def add(self, plans: int) -> None:
        """Learn from a round."""
        self.rounds, self.plans = self.rounds + 1, self.plans + plans


@dataclass(frozen=True)
class Aim:
    """The budget to refine a plan for."""

    units: Units  # what a plan may remove from each layer
    total: int  # B
    rounds: int  # at most
    measure: CostName = "esap"
    across: Across = "mean"  # how costs of several corpora combine

    def over(self, curves: Sequence[Curves]) -> Sensitivity:
        """The curves of every corpus, for this aim."""
        return Sensitivity(tuple(curves), self.measure, self.across)


def measure_curves(
    work: Measuring, points: Sequence[Point], measure: CostName = "esap"
) -> Generator[Progress, None, Curves]:
    """The curves of an order; `points` are those of its layers alone, see `curve_points`."""
    yield from work.measure(points)
    return known_curves(work, points, measure)


def known_curves(work: Measuring, points: Sequence[Point], measure: CostName) -> Curves:
    """The curves of points that were measured."""
    curves = curves_of(work.points, len(points[0].base), measure, work.samples)
    if curves is None:
        raise ValueError("a layer has no levels, so there is nothing to measure")
    return curves


def refine(
    works: Sequence[Measuring], first: Solution, aim: Aim, new: NewPlans | None = None
) -> Generator[Progress, None, list[Round]]:
    """The plan that the curves give for a budget, then the rounds that improved on it.

    `works` are those of each corpus; all of them measure the same plans. `new` learns from the
    rounds, for what is expected of later ones.

    A round measures the plan's moves, solves, and measures the solutions as a whole; the best one
    is the next plan. If none is better, the next round moves half as far, and so on until the
    smallest moves do not help either.
    """
    new = new or NewPlans()
    parts = refinement_parts(works, aim.units, first.removed, aim.rounds, new)
    measuring = _measure_round(works, first.removed, first.cost, aim)
    rounds = [(yield from parts.run("first", measuring))]
    scale, near = Fraction(1), dict[Point, None]()  # moves, in order
    for number in range(aim.rounds):
        best, before = rounds[-1], len(near)
        near |= dict.fromkeys(moved_points(aim.units, best.removed, scale))
        if len(near) == before:
            break
        for place, work in enumerate(works):
            yield from parts.run(f"near {number} {place}", work.measure(list(near)))
        better = yield from parts.run(f"best {number}", _better(works, best, list(near), aim, new))
        for later in range(number + 1, aim.rounds):
            parts.expect(f"best {later}", scaled(_whole_plan(works), new.expected))
        if better is None:
            scale /= 2
        else:
            rounds.append(better)
            near = {}
    return rounds


def refinement_parts(
    works: Sequence[Measuring], units: Units, removed: Removed, rounds: int, new: NewPlans
) -> Parts:
    """The parts of a refinement of about this plan that goes through all its rounds."""
    moves = [point.position for point in moved_points(units, removed)[1:]]
    plan = _whole_plan(works)
    parts: dict[str, Costs] = {"first": plan}
    for number in range(rounds):
        for place, work in enumerate(works):
            parts[f"near {number} {place}"] = work.costs.runs(moves)
        parts[f"best {number}"] = scaled(plan, new.expected)
    return Parts(parts)


def _whole_plan(works: Sequence[Measuring]) -> Costs:
    """What it costs to measure a plan on every corpus."""
    plan = {"multiply": 0.0, "compare": 0.0}
    for work in works:
        plan = {kind: plan[kind] + amount for kind, amount in work.costs.run(WHOLE).items()}
    return plan


def _better(
    works: Sequence[Measuring], best: Round, near: Sequence[Point], aim: Aim, new: NewPlans
) -> Generator[Progress, None, Round | None]:
    """The best plan by these moves of the best so far, if it measures better.

    The cheapest plan in a wide window promises most, that in a narrow one is predicted more
    precisely, so all are measured.
    """
    moved = [moved_curves(work.points, near, aim.measure, work.samples) for work in works]
    plans: dict[Removed, float] = {}
    for window in _WINDOWS:
        inside = aim.over([curves.within(best.removed, window) for curves in moved])
        removed, cost = inside.solution(aim.units, aim.total)[1:]
        plans.setdefault(removed, cost)
    parts = Parts({str(removed): _round_parts(works, removed).whole.total for removed in plans})
    new.add(sum(any(parts.costs(str(removed)).values()) for removed in plans))
    rounds = []
    for removed, cost in plans.items():
        measuring = _measure_round(works, removed, cost, aim)
        rounds.append((yield from parts.run(str(removed), measuring)))
    chosen = min(rounds, key=lambda candidate: candidate.cost)
    return chosen if chosen.cost < best.cost else None


def _round_parts(works: Sequence[Measuring], removed: Removed) -> Parts:
    """What it costs to measure a plan as a whole, by number of the corpus."""
    return Parts({str(n): work.expected([whole_point(removed)]) for n, work in enumerate(works)})


def _measure_round(
    works: Sequence[Measuring], removed: Removed, predicted: float, aim: Aim
) -> Generator[Progress, None, Round]:
    parts = _round_parts(works, removed)
    for number, work in enumerate(works):
        yield from parts.run(str(number), work.measure([whole_point(removed)]))
    costs = [cost_at(work.points, removed, aim.measure, work.samples) for work in works]
    return Round(removed, predicted, aim.over(()).over(costs), sum(n.layers for n in works))
