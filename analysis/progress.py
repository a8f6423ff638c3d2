"""Progress of long tasks: generators yield it, the command line and jobs show it.

A step says how far its phase is, and how far the whole task is. For the latter a task states its
work before it begins: costs by kind of work, in a common unit. `Parts` puts the wholes of several
tasks together, `Tally` counts the work of one; `analysis.pace` tells the time that is left.
"""

import statistics
from collections import defaultdict
from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, TypeVar

Result = TypeVar("Result")
# Kind of work -> its cost, in seconds of the machine on which the rates were measured.
Costs = Mapping[str, float]

# Phases that several tasks have.
LOADING: Final = "loading the model"
RUNNING_ORIGINAL: Final = "running the original model"


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of work."""

    a_second: float  # how much of it takes a second, on the machine on which `KINDS` was measured
    is_bytes: bool = False
    is_read: bool = False  # whether the bytes are of files that are read
    # Whether its rate known of a machine says how fast others like it are there: not what depends
    # on the sizes of matrices, what a disk writes, and what is neither bytes nor products.
    tells_machine: bool = True
    # The same of its rate in a run: not what threads work on, or what is over before others begin.
    tells_run: bool = True
    is_forward: bool = False  # products of a model's layers: of these, others like them tell first


_bytes = partial(Kind, is_bytes=True, is_read=True)
_of_repair = partial(Kind, tells_machine=False)
_apart = partial(Kind, tells_machine=False, tells_run=False)

# By tools/benchmarks/progress.py. Only ratios matter, and only until the rates of the run itself
# are known. Amounts are bytes or multiply-adds, unless they say otherwise.
KINDS: Final[Mapping[str, Kind]] = {
    "read": _bytes(1.0e9),  # weights, from disk or its cache into a model
    "multiply": Kind(2.0e10, is_forward=True),  # through layers
    "compare": Kind(7.0e9),  # of one output head, where two models are compared
    "decode": Kind(2.0e9),  # of a forward, a token at a time
    "answer": Kind(2.0e9),  # the same
    "observe": _of_repair(1.0e10, is_forward=True),  # where a repair runs both models
    "run repaired": _of_repair(2.0e10, is_forward=True),  # with weights that are read again
    "fit": _of_repair(3.3e10),  # of a repair's least squares
    "invert": _of_repair(1.7e10),  # of inverses of its Gram matrices: cubes of their width
    "hash": _bytes(1.0e9, tells_run=False),  # of files
    "sum": _bytes(5.0e9),  # of experts, whose weights are summed up
    "compile": _apart(1.0),  # seconds, of what sums them up
    "write": _apart(7.0e8, is_bytes=True),  # hashed as well
    "check": _bytes(7.0e8, tells_run=False),  # of an export beside those of its source
    "read float32": _bytes(1.0e9),  # weights, into a model in float32, whatever the others are in
    "multiply float32": Kind(2.0e10),  # of a forward through it
    # Memory that a process did not have, before weights are read.
    "allocate": Kind(1.0e9, is_bytes=True, tells_run=False),
    "open": _apart(1.2e4),  # tensors of a checkpoint, for which a model without weights is made
}
_UNSTATED: Final = Kind(1.0)
RATES: Final = {name: kind.a_second for name, kind in KINDS.items()}
# Kinds of work whose amounts are bytes that are read.
READING: Final = tuple(name for name, kind in KINDS.items() if kind.is_read)
_ROUNDING: Final = 1e-9  # share of a total that sums of floats are off by


def kind_of(name: str) -> Kind:
    """A kind of work by its name; of steps that do not say it, one like products."""
    return KINDS.get(name, _UNSTATED)


def cost(kind: str, amount: float) -> float:
    """Seconds that an amount of work takes on the machine of `RATES`, a key of which is `kind`."""
    return amount / RATES[kind]


def rate_of(kind: str, known: Mapping[str, float]) -> float:
    """Seconds that a unit of cost takes, by the rates known of a machine.

    A kind of work that they lack is as much slower there as the median of others: one kind that is
    much slower is not all of them. Of bytes those of bytes tell, and of products the rest, if any
    is known: a processor whose products are fast reads no faster.
    """
    if kind in known:
        return known[kind]
    others = [other for other in known.keys() & KINDS.keys() if KINDS[other].tells_machine]
    alike = [known[other] for other in others if KINDS[other].is_bytes == kind_of(kind).is_bytes]
    rates = alike or [known[other] for other in others]
    return statistics.median(rates) if rates else 1.0


@dataclass(frozen=True, slots=True)
class Whole:
    """How far a whole task is, in the costs of its kinds of work; 0 <= before <= done <= total."""

    total: Costs
    done: Costs = field(default_factory=dict)
    before: Costs = field(default_factory=dict)  # the part of `done` that an earlier run did

    @property
    def fraction(self) -> float:
        """Share finished, 0..1; 1 if there is nothing to do."""
        total = sum(self.total.values())
        return min(1.0, sum(self.done.values()) / total) if total else 1.0

    @property
    def left(self) -> Costs:
        """The costs of what no earlier run did."""
        pairs = self.total.items()
        return {kind: max(0.0, amount - self.before.get(kind, 0.0)) for kind, amount in pairs}

    @property
    def is_known(self) -> bool:
        """Whether earlier runs did all of it, up to rounding."""
        return sum(self.left.values()) <= _ROUNDING * sum(self.total.values())

    def __add__(self, other: "Whole") -> "Whole":
        return Whole(
            added(self.total, other.total),
            added(self.done, other.done),
            added(self.before, other.before),
        )


NOTHING: Final = Whole({})  # a task whose result is known already


def added(first: Costs, second: Costs) -> Costs:
    """The costs of two works together."""
    return {kind: first.get(kind, 0.0) + second.get(kind, 0.0) for kind in {**first, **second}}


def scaled(costs: Costs, share: float) -> Costs:
    """The costs of a share of the work, or of a multiple."""
    return {kind: share * amount for kind, amount in costs.items()}


@dataclass(frozen=True, slots=True)
class Progress:
    """One step of a long task."""

    phase: str  # "calibrating", "writing", ...
    done: int  # units finished, 0 <= done <= total
    total: int  # 0 if unknown
    unit: str = ""  # "tokens", "bytes", "shards", ...
    note: str = ""  # one line for the log
    at: str = ""  # where in the phase: "layer 3"
    whole: Whole | None = None  # None: the step does not say

    def __str__(self) -> str:
        count = f"{self.done:,} of {self.total:,} {self.unit}" if self.total else ""
        return " ".join(filter(None, (self.phase, self.at, count.strip(), self.note)))

    @property
    def fraction(self) -> float:
        """Share of the phase that is finished, 0..1; 0 if the total is unknown."""
        return self.done / self.total if self.total else 0.0


def changed(
    steps: Generator[Progress, None, Result], change: Callable[[Progress], Progress]
) -> Generator[Progress, None, Result]:
    """The steps of a task, each changed; as `yield from` in all else."""
    go_on = partial(next, steps)
    with closing(steps):
        while True:
            try:
                step = change(go_on())
            except StopIteration as stop:
                result: Result = stop.value
                return result
            try:
                yield step
                go_on = partial(next, steps)
            except GeneratorExit:
                raise
            except BaseException as error:  # noqa: BLE001  (goes to the task)
                go_on = partial(steps.throw, error)


def stated_whole(steps: Generator[Progress, None, object]) -> Generator[Progress, None, Whole]:
    """What a task has to do, as it states before it begins; it is stopped there.

    Also if all of it is known, see `Whole.is_known`, as what follows may write. `NOTHING` if it
    ends without a word.
    """
    with closing(steps):
        for step in steps:
            if step.whole is not None:
                return step.whole
            yield step
    return NOTHING


def bytes_of(whole: Whole) -> int:
    """Bytes that the rest of a whole task reads."""
    return bytes_in(whole.left)


def bytes_in(costs: Costs) -> int:
    """Bytes that are read in work of such costs."""
    return round(sum(costs.get(kind, 0.0) * RATES[kind] for kind in READING))


def bytes_progress(phase: str, done: int, total: int, kind: str) -> Progress:
    """A step of a task that is nothing but bytes, which cost as this key of `RATES` says."""
    whole = Whole({kind: cost(kind, total)}, {kind: cost(kind, done)})
    return Progress(phase, done, total, "bytes", whole=whole)


class Tally:
    """Counts the work of a task that states its costs by kind."""

    def __init__(self, total: Costs, before: Costs | None = None) -> None:
        self._total, self._before = total, dict(before or {})
        self._done = defaultdict(float, self._before)

    def add(self, kind: str, amount: float) -> None:
        """Count work as done."""
        self._done[kind] += amount

    def expect(self, costs: Costs) -> None:
        """Count more work as needed."""
        self._total = added(self._total, costs)

    def correct(self, kind: str, amount: float) -> None:
        """So much work of a kind is needed in all, whatever was expected."""
        self._total = {**self._total, kind: amount}

    def leave_out(self, costs: Costs) -> None:
        """Count work as not needed."""
        self._total = {
            kind: max(0.0, total - costs.get(kind, 0.0)) for kind, total in self._total.items()
        }

    @property
    def whole(self) -> Whole:
        """How far the task is."""
        done = {kind: min(self._done[kind], total) for kind, total in self._total.items()}
        return Whole(self._total, done, self._before)


class Parts:
    """A task of several parts, whose costs are known before they begin.

    What a part states of itself replaces what was expected of it.
    """

    def __init__(
        self, parts: Mapping[str, Costs], before: Mapping[str, float] | None = None
    ) -> None:
        """`before`: the shares of parts that an earlier run did."""
        self._wholes: dict[str, Whole] = {}
        for name, costs in parts.items():
            done = scaled(costs, (before or {}).get(name, 0.0))
            self._wholes[name] = Whole(costs, done, done)
        self._stated: set[str] = set()

    @property
    def whole(self) -> Whole:
        """How far all parts are together."""
        return sum(self._wholes.values(), NOTHING)

    def part(self, name: str) -> Whole:
        """How far a part is; nothing if none was expected or ran."""
        return self._wholes.get(name, NOTHING)

    def costs(self, name: str) -> Costs:
        """What a part costs, as far as is known."""
        return self._wholes[name].total

    def expect(self, name: str, costs: Costs) -> None:
        """One more part, or what is known better of one that has not begun."""
        self._wholes[name] = Whole(costs)

    def run(
        self, name: str, steps: Generator[Progress, None, Result], alike: Collection[str] = ()
    ) -> Generator[Progress, None, Result]:
        """The steps of a part, which say how far the whole task is; then the part is over.

        The part is as far as it states: its phases are not of the whole part. Those that are
        `alike`, and have not begun, are expected to cost what it states.
        """

        def change(step: Progress) -> Progress:
            if step.whole is not None and step.whole.total and name not in self._stated:
                for other in alike:
                    self.expect(other, step.whole.total)
            self._state(name, step)
            return replace(step, whole=self.whole)

        result = yield from changed(steps, change)
        self.end(name)
        return result

    def by_phase(
        self, steps: Generator[Progress, None, Result]
    ) -> Generator[Progress, None, Result]:
        """The steps of a task whose phases are parts by their names, with the place if one is.

        A part that does not state its whole is as far as its phase.
        """
        current = ""

        def change(step: Progress) -> Progress:
            nonlocal current
            name = f"{step.phase} {step.at}"
            name = name if name in self._wholes else step.phase
            if (name in self._wholes or step.whole) and name != current:
                self._finish(current)
                current = name
            self._state(name, step)
            if name in self._wholes and name not in self._stated:
                self.reach(name, step.fraction)
            return replace(step, whole=self.whole)

        result = yield from changed(steps, change)
        self._finish(current)
        return result

    def _state(self, name: str, step: Progress) -> None:
        if step.whole is not None:
            self._wholes[name] = step.whole
            self._stated.add(name)

    def _finish(self, name: str) -> None:
        """A phase is over: all that was expected of it is done, unless it stated what was."""
        if name in self._wholes and name not in self._stated:
            self.finish(name)
        else:
            self.end(name)

    def reach(self, name: str, share: float) -> None:
        """So much of a part is done, if not more."""
        part = self._wholes[name]
        if share > part.fraction:
            self._wholes[name] = replace(part, done=scaled(part.total, share))

    def finish(self, name: str) -> None:
        """A part is done."""
        self._wholes[name] = replace(self._wholes[name], done=self._wholes[name].total)

    def end(self, name: str) -> None:
        """A part is over: what was not done of it was not needed."""
        if name in self._wholes:
            whole = self._wholes[name]
            self._wholes[name] = replace(whole, total=whole.done)
