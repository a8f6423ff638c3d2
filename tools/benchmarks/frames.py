"""Steps of a real command as they came, and whether the time left that they tell was right.

A command is run in a process of its own, which keeps each step beside two clocks: wall time, and
the processor time of the process, as others may use the machine. Its steps can be shown again, so a
change of `analysis.pace` is judged on the same run, whatever the machine does since.
"""

import json
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from analysis.pace import Pace
from analysis.progress import Progress, Whole
from analysis.stats.rates import known_rates

PERIOD, WITHIN, FIRST = 0.1, 0.25, 0.1
CLOCKS = {"wall": time.perf_counter, "processor": time.process_time}
Times = Mapping[str, float]  # by clock, seconds since the command began


class Frame(NamedTuple):
    """What is shown of a command at a moment."""

    at: float  # seconds since it began
    share: float  # of the whole; 0 while it is not known
    left: float | None  # seconds
    phase: str


@dataclass(frozen=True)
class Judgement:
    """How right the time left of a run was, by a clock."""

    seconds: float  # that it took
    right: float | None  # share of the frames after the first tenth; None without any
    rises: bool  # whether the share never fell
    wrong: Sequence[str]  # the other frames
    pace: Pace  # at the end

    @property
    def share(self) -> str:
        """Of the frames that are right, in words."""
        return "-" if self.right is None else f"{self.right:.1%}"

    @property
    def rates(self) -> Mapping[str, float]:
        """Seconds for a unit of cost, by kind of work, as the run took."""
        return {kind: self.pace._seconds[kind] / costs for kind, costs in self.pace._costs.items()}

    @property
    def rates_in_words(self) -> str:
        """The same, each beside the rate that was known."""
        known = {kind: f" ({rate:.2f})" for kind, rate in self.pace._usual.items() if rate}
        pairs = self.rates.items()
        return ", ".join(f"{kind} {rate:.2f}{known.get(kind, '')}" for kind, rate in pairs)


@dataclass(frozen=True)
class Recording:
    """The steps of a command, each with the times at which it came."""

    ended: Times
    steps: Sequence[tuple[Times, Progress]]
    known: Sequence[tuple[Times, Mapping[str, float]]]  # rates known of the machine, from when on

    @classmethod
    def from_file(cls, file: Path) -> "Recording":
        """As `write` wrote it."""
        raw = json.loads(file.read_text())
        steps = [(times, _step(**fields)) for times, fields in raw["steps"]]
        return cls(raw["ended"], steps, raw["known"])

    def write(self, file: Path) -> None:
        """Keep it."""
        steps = [(times, _fields(step)) for times, step in self.steps]
        file.write_text(json.dumps({"ended": self.ended, "steps": steps, "known": self.known}))

    def shown(self, clock: str) -> tuple[Sequence[Frame], Pace]:
        """What is shown, ten times a second by a clock; and the pace once all steps have come."""
        now, phase, frames = 0.0, "", list[Frame]()
        count = int(self.ended[clock] / PERIOD)
        pace = Pace(lambda: now, lambda: self._known_at(clock, now))
        coming = iter(self.steps)
        times, step = next(coming, (self.ended, None))
        for at in (*(number * PERIOD for number in range(1, count + 1)), math.inf):
            while step is not None and times[clock] <= at:
                now, phase = times[clock], step.phase
                pace.take(step)
                times, step = next(coming, (self.ended, None))
            if at < math.inf:
                now = at
                frames.append(Frame(at, pace.fraction or 0.0, pace.seconds_left, phase))
        return frames, pace

    def judged(self, clock: str) -> Judgement:
        """Whether what is shown is right, by a clock."""
        frames, pace = self.shown(clock)
        ended, wrong = self.ended[clock], list[str]()
        later = [frame for frame in frames if frame.at >= FIRST * ended]
        for frame in later:
            left, truth = frame.left, ended - frame.at
            if left is None or abs(left - truth) > WITHIN * truth:
                said = "none" if left is None else f"{left:.1f}"
                words = f"{said} for {truth:.1f} {frame.phase}"
                wrong.append(f"{frame.at:.1f} s: {frame.share:.0%} {words}")
        shares = [frame.share for frame in frames]
        right = 1 - len(wrong) / len(later) if later else None
        return Judgement(ended, right, shares == sorted(shares), wrong, pace)

    def _known_at(self, clock: str, now: float) -> Mapping[str, float]:
        return next((rates for times, rates in self.known[::-1] if times[clock] <= now), {})


def _fields(step: Progress) -> dict[str, object]:
    whole = step.whole
    costs = whole and {"total": whole.total, "done": whole.done, "before": whole.before}
    named = ("phase", "done", "total", "unit", "note", "at")
    return {**{name: getattr(step, name) for name in named}, "whole": costs}


def _step(whole: dict[str, dict[str, float]] | None, **fields: Any) -> Progress:
    return Progress(**fields, whole=Whole(**whole) if whole else None)


def record(file: Path, usual: Mapping[str, float], words: Sequence[str], stops_at: float) -> None:
    """Run a command of the product here; keep its longest task. It is stopped at a share."""
    from app import cli, console

    tasks: list[Recording] = []
    console._shown = contextmanager(lambda spoken, pace: _recorded(tasks, usual, stops_at))
    sys.argv = ["moeprune", *words]
    try:
        cli.main()
    finally:
        if tasks:
            max(tasks, key=lambda task: task.ended["wall"]).write(file)


def _recorded(
    tasks: list[Recording], usual: Mapping[str, float], stops_at: float
) -> Iterator[Callable[[Progress], None]]:
    """In place of a bar."""
    began = {name: clock() for name, clock in CLOCKS.items()}
    steps, known = list[tuple[Times, Progress]](), list[tuple[Times, Mapping[str, float]]]()
    stopped = list[bool]()

    def times() -> Times:
        return {name: clock() - began[name] for name, clock in CLOCKS.items()}

    def rates() -> Mapping[str, float]:
        known.append((times(), usual or known_rates()))
        return known[-1][1]

    pace = Pace(CLOCKS["wall"], rates)

    def take(step: Progress) -> None:
        pace.take(step)
        steps.append((times(), step))
        if (pace.fraction or 0.0) > stops_at and not stopped:
            stopped.append(True)
            os.kill(os.getpid(), signal.SIGINT)

    yield take
    tasks.append(Recording(times(), steps, known))
