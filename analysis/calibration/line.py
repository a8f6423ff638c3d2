"""Processes in a line, each with some layers of a model: batches pass through one after the other.

What a process makes of a batch goes to the next one, which works on it while this one continues. An
answer to each batch comes back along the line, with the gradient where backward is run.
"""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final

import torch

from analysis.calibration.distributed import Interrupted, Processes, Sums
from analysis.errors import LostProcessError

# What a process does with a batch: it gets what the process before it gives, and hands on the rest.
Step = Callable[[Sums], Sums]
AHEAD: Final = 2  # batches that a process may be ahead of the next one
_STOP: Final = "stop"  # in a message: the sender has failed
_TAGS = count(1)  # one for each line, the same in all processes


def _no_answer(_: Sums) -> Sums:
    return {}


@dataclass(slots=True)
class Line:
    """One process in the line. The first process of the run is the last of the line.

    So the process that writes is the one that holds the end of the model.
    """

    processes: Processes
    ahead: int = AHEAD
    tag: int = field(default_factory=lambda: next(_TAGS))
    _answers: deque[Step] = field(default_factory=deque)  # of batches that are not answered
    _posted: deque[list[Any]] = field(default_factory=deque)  # that may be under way

    @property
    def place(self) -> int:
        """Number of this process in the line."""
        return self.processes.world - 1 - self.processes.rank

    @property
    def is_first(self) -> bool:
        """Whether batches enter here."""
        return self.place == 0

    @property
    def is_last(self) -> bool:
        """Whether batches end here."""
        return self.processes.is_first

    @contextmanager
    def open(self) -> Iterator[None]:
        """Pass batches inside; an error here stops all the others, as `together` tells."""
        try:
            with self.processes.together():
                try:
                    yield
                except Exception:
                    self._stop()
                    raise
        finally:
            self._answers.clear()

    def pass_on(self, forward: Step, backward: Step = _no_answer) -> None:
        """Run a batch, and answer the one that was run so many batches before.

        `backward` gets what the next process answers, and gives the answer to the one before.
        """
        entering: Sums = {} if self.is_first else self._take(self.processes.rank + 1)
        leaving = forward(entering)
        if not self.is_last:
            self._post(leaving, self.processes.rank - 1)
        self._answers.append(backward)
        if len(self._answers) > self.ahead * (self.processes.world - 1 - self.place):
            self.answer()

    def drain(self) -> None:
        """Wait until all batches have passed all processes."""
        while self._answers:
            self.answer()

    @contextmanager
    def gathered(self, sums: Sums) -> Iterator[list[Sums]]:
        """The sums of all processes in the last of the line, for a block there; others get none.

        The others wait until its block has ended. All must call this, behind the same batch. It
        goes by the line's own messages: a process that waits here learns if another one fails.
        """
        if not self.is_last:
            self._post(sums, 0)
            yield []
            self._take(0)
            return
        others = range(1, self.processes.world)
        yield [sums, *map(self._take, others)]
        for rank in others:
            self.processes.send({}, rank, self.tag)

    def answer(self) -> None:
        """Answer the earliest batch that is not answered, once the next process has."""
        backward = self._answers.popleft()
        answer = backward({} if self.is_last else self._take(self.processes.rank - 1))
        if not self.is_first:
            self._post(answer, self.processes.rank + 1)

    def _take(self, rank: int) -> Sums:
        message = self.processes.take(rank, self.tag)
        if _STOP in message:
            raise Interrupted
        return message

    def _post(self, message: Sums, rank: int) -> None:
        self._posted.append(self.processes.post(message, rank, self.tag))
        # Of each kind no more than a process is ahead are under way; the others were taken.
        while len(self._posted) > 2 * (self.ahead + 1) * self.processes.world:
            self._posted.popleft()

    def _stop(self) -> None:
        # Not only the neighbours: see `gathered`.
        for rank in range(self.processes.world):
            if rank != self.processes.rank:
                with suppress(LostProcessError):
                    self._post({_STOP: torch.ones(1)}, rank)
