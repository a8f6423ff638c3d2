"""The share of a whole task that is finished, and the time left."""

import threading
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import accumulate
from typing import Final

from analysis.progress import KINDS, NOTHING, Progress, Whole, kind_of, rate_of, scaled

# From this share of a kind's work on, its rate is that of the run itself.
_ENOUGH: Final = 0.02
# Where its rate is known of the machine, that counts as so much of its work: the first layer runs
# through kernels that start up.
_BELIEVED: Final = 0.03
# Seconds from which on a kind of work tells the rate of the machine.
_LONG: Final = 20.0
_ROUNDING: Final = 1e-9  # share of amounts that sums of floats are off by
# All that was stated is done from this share on.
_ALL: Final = 1 - _ROUNDING
# Work at a share x of the time so far weighs x to this power: first layers are slow, and what else
# a machine does changes. But a disk is fast and slow by turns.
_FADING: Final = 2


class Pace:
    """Share and time left of a whole task, from its steps as they come.

    The share never falls, unless another task follows that nobody stated. The time left follows
    from the seconds that each kind of work took in this run; a kind that has hardly begun takes as
    much longer than `usual`, the rates known of this machine, as others like it do. Before a step
    states its whole, and after all of it is done, both are of the phase.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        usual: Callable[[], Mapping[str, float]] = dict,
    ) -> None:
        """`usual` is asked when a step states its whole, as a task may measure it before."""
        self._clock, self._ask_usual = clock, usual
        self._usual: Mapping[str, float] = {}
        self._started = self._counted = clock()
        self._phase: tuple[str, str] | None = ("", "")  # None while steps state their whole
        self._whole: Whole | None = None
        self._running = ""  # the phase of the last step with a whole
        self._earlier, self._last = NOTHING, NOTHING
        # By kind, in this run: what is done; and seconds and the work that took them, late ones
        # weighing more.
        self._done: defaultdict[str, float] = defaultdict(float)
        self._took: defaultdict[str, float] = defaultdict(float)
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._costs: defaultdict[str, float] = defaultdict(float)
        self._lock = threading.Lock()  # what shows it has a thread of its own
        self.fraction: float | None = None  # None while nothing is known

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return self._clock() - self._started

    def take(self, step: Progress) -> None:
        """Learn from a step."""
        with self._lock:
            if step.whole is not None and any(step.whole.total.values()):
                self._take_whole(step.whole, step.phase)
            elif self._phase is not None or (self.fraction or 0.0) > _ALL:
                self._take_phase(step, (step.phase, step.at))

    def _take_whole(self, whole: Whole, phase: str) -> None:
        if self._phase is not None:
            self._forget()  # what came before was no part of the whole
            self._phase = None
            self._usual = self._ask_usual()
        least = self.fraction or 0.0
        least_done = scaled(self._last.done, 1 - _ROUNDING)
        if any(whole.done.get(kind, 0.0) < done for kind, done in least_done.items()):
            # Another task follows, which nobody stated.
            self._earlier += replace(self._last, total=self._last.done)
            least = 0.0
        if phase != self._running and not self._gained(self._earlier + whole):
            self._counted = self._clock()  # what came before was the start of something
        self._running = phase
        self._last = whole
        self._whole = self._earlier + whole
        self.fraction = max(least, self._whole.fraction)
        self._credit(self._whole)

    def _take_phase(self, step: Progress, phase: tuple[str, str]) -> None:
        last = self._last.done.get("", 0.0)
        if phase != self._phase or step.done < last or step.done >= step.total:
            self._forget()  # at the end of a phase nothing is known of the next
            self._phase = phase
            self._last = Whole({}, {"": step.done}, {"": step.done})
        if 0 < step.done < step.total:
            self._last = replace(self._last, total={"": step.total}, done={"": step.done})
            self._whole, self.fraction = self._last, step.fraction
            self._credit(self._whole)

    def _forget(self) -> None:
        """Count from here."""
        self._counted = self._clock()
        self._whole, self.fraction = None, None
        self._earlier = self._last = NOTHING
        for amounts in (self._done, self._took, self._seconds, self._costs):
            amounts.clear()

    def _credit(self, whole: Whole) -> None:
        """Attribute the time since the last time to the work done in it."""
        now, gained = self._clock(), self._gained(whole)
        if not gained:
            return
        expected = {kind: more * self._rate(kind) for kind, more in gained.items()}
        took, weight = now - self._counted, sum(expected.values())
        for kind, more in gained.items():
            seconds = took * expected[kind] / weight
            before = self._took[kind]
            fades = before and kind != "write"
            fading = (before / (before + seconds)) ** _FADING if fades else 1.0
            self._seconds[kind] = fading * self._seconds[kind] + seconds
            self._costs[kind] = fading * self._costs[kind] + more
            self._took[kind] += seconds
            self._done[kind] += more
        self._counted = now

    def _gained(self, whole: Whole) -> dict[str, float]:
        """The work that was done since the last time."""
        return {
            kind: more
            for kind, done in whole.done.items()
            if (more := done - whole.before.get(kind, 0.0) - self._done[kind]) > 0
        }

    def _rate(self, kind: str) -> float:
        """Seconds for a unit of cost."""
        total = self._whole.total.get(kind, 0.0) if self._whole else 0.0
        if self._seconds[kind] > 0 and self._done[kind] >= _ENOUGH * total:
            own, before = self._own_rate(kind), self._usual.get(kind)
            believed = _BELIEVED * total if before is not None else 0.0
            share = self._done[kind] / (self._done[kind] + believed)
            return share * own + (1 - share) * (before or 0.0)
        return rate_of(kind, self._usual) * self._slower(kind)

    def _own_rate(self, kind: str) -> float:
        """That of this run, late work weighing more."""
        return self._seconds[kind] / self._costs[kind]

    def _slower(self, kind: str) -> float:
        """How many times as long as usual this run takes, by work like this, if any is done.

        Of its kinds the one in the middle of the work, as one may be far off: small matrices are
        inverted slowly. Bytes and products are not alike: the disk decides one, and the processor
        the other. A forward is as slow as other forwards, whatever a fit is.
        """
        if not kind_of(kind).tells_run:
            return 1.0
        took = [other for other, seconds in self._seconds.items() if seconds > 0]
        done = [other for other in took if kind_of(other).tells_run]
        is_read = kind_of(kind).is_read
        alike = [other for other in done if kind_of(other).is_read == is_read]
        if kind_of(kind).is_forward:
            alike = [other for other in alike if kind_of(other).is_forward] or alike
        if not alike and not self._usual:
            alike = done
        if not alike:
            return 1.0
        ranked = sorted((self._times_usual(other), self._costs[other]) for other in alike)
        sums = [*accumulate(work for _, work in ranked)]
        return ranked[bisect_left(sums, sums[-1] / 2)][0]

    def _times_usual(self, kind: str) -> float:
        """How many times as long as usual work of a kind takes that was done."""
        usual = rate_of(kind, self._usual)
        total = self._whole.total.get(kind, 0.0) if self._whole else 0.0
        believed = _BELIEVED * total * usual if kind in self._usual else 0.0
        return (self._seconds[kind] + believed) / (self._costs[kind] * usual + believed)

    @property
    def rates(self) -> dict[str, float]:
        """Seconds of this machine for a unit of cost, by the kinds of work that took a while.

        Not of work whose kind nobody stated.
        """
        with self._lock:
            long = [kind for kind, took in self._took.items() if took >= _LONG and kind in KINDS]
            return {kind: self._own_rate(kind) for kind in long}

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the end; None while nothing tells it.

        Before any of this run's work is done, rates known of the machine do, if most of the work is
        of their kinds.
        """
        with self._lock:
            if self._whole is None or not (self._took or self._is_told(self._whole)):
                return None
            left = sum(
                (total - self._whole.done.get(kind, 0.0)) * self._rate(kind)
                for kind, total in self._whole.total.items()
            )
            return max(0.0, left - (self._clock() - self._counted))

    def _is_told(self, whole: Whole) -> bool:
        """Whether rates known of this machine tell how long most of the work takes."""
        seconds = {kind: amount * self._rate(kind) for kind, amount in whole.left.items()}
        known = sum(seconds[kind] for kind in seconds.keys() & self._usual.keys())
        return known > sum(seconds.values()) / 2
