"""Measuring points on a loaded model: batch after batch, hidden states of a base computed once.

In front of the layer that a point moves, everything is as in its base. So of each batch the base
runs first, and every point from its own layer on: bit for bit what the whole masked model gives.
Points are measured a batch at a time, and each batch by one process: several share them.
"""

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from filelock import Timeout

from analysis.arrays import FloatArray
from analysis.errors import PlanError
from analysis.progress import Progress
from pruning.allocation import Removed
from pruning.append_log import AppendLog
from pruning.evaluate.candidate import MeasureSettings
from pruning.search.fitness import MaskedRuns, Subject
from pruning.search.streamed import Measured, StreamedRuns
from pruning.sensitivity.points import MEASURES, WHOLE, Point, line_of
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
