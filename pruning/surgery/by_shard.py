"""The same question put to every shard of an export, several at once, with progress."""

from collections.abc import Callable, Generator, Iterable
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from threading import Event
from typing import TypeVar

from analysis.progress import Progress

_MAX_WORKERS = 4
_POLL_SECONDS = 0.1

Answer = TypeVar("Answer")


class Reader:
    """What the thread that reads a shard tells of its progress, and is told."""

    def __init__(self, stop: Event) -> None:
        self._stop = stop
        self.done = 0

    def goes_on(self, nbytes: int) -> bool:
        """Count bytes as read; False when the answer is no longer wanted."""
        self.done += nbytes
        return not self._stop.is_set()


def ask_shards(
    names: Iterable[str], ask: Callable[[str, Reader], Answer], phase: str, total: int
) -> Generator[Progress, None, dict[str, Answer]]:
    """Ask every shard; the answers by name, in the order of the names, are the generator's value.

    However this ends, by an error or because the caller stops, no thread runs on.

    Args:
        names: of the shards.
        ask: called with a name and a `Reader` in a thread of its own.
        phase: what is being done, for the progress.
        total: bytes to read.
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
