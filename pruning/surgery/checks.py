"""Checks of an export: a question and its answer, and one question put to every shard."""

from collections.abc import Callable, Generator, Iterable
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from threading import Event
from typing import TypeVar

from analysis.progress import Progress

_SHOWN = 3
_MAX_WORKERS = 4
_POLL_SECONDS = 0.1
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Check:
    """One question that was put to an export."""

    name: str  # what was checked, in a word or two
    ok: bool  # whether it holds
    detail: str  # one line; where it does not hold, it names the file, tensor or layer


def check_that(name: str, problems: Iterable[str], fine: str) -> Check:
    """A check that holds if there are no problems; `fine` is then its detail."""
    found = list(problems)
    if not found:
        return Check(name, True, fine)
    more = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return Check(name, False, "; ".join(found[:_SHOWN]) + more)


class Reader:
    """What the thread that reads a shard tells of its progress, and is told."""

    def __init__(self, stop: Event) -> None:
        self._stop = stop
        self.done = 0

    def goes_on(self, nbytes: int) -> bool:
        """Count bytes as read; False when the answer is no longer needed."""
        self.done += nbytes
        return not self._stop.is_set()


def ask_shards(
    names: Iterable[str], ask: Callable[[str, Reader], Answer], phase: str, total: int
) -> Generator[Progress, None, dict[str, Answer]]:
    """Ask several shards at once; returns the answers by name, in the order of the names.

    However this ends, by an error or because the caller stops, no thread keeps running.

    `ask` is called with a name and a `Reader` in a thread of its own; `total` are the bytes to
    read.
    """
    stop = Event()
    readers = {name: Reader(stop) for name in names}
    with ThreadPoolExecutor(_MAX_WORKERS, "verify") as pool:
        futures = {name: pool.submit(ask, name, reader) for name, reader in readers.items()}
        try:
            pending: set[Future[Answer]] = set(futures.values())
            while pending:
                done = sum(reader.done for reader in readers.values())
                yield Progress(phase, done, total, "bytes")
                _, pending = wait(pending, _POLL_SECONDS, FIRST_EXCEPTION)
        finally:
            stop.set()
    return {name: future.result() for name, future in futures.items()}
