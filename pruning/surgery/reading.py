"""Reads ranges of files, each once: for a comparison, and for a SHA-256 from the same reads."""

import hashlib
import math
import os
from collections.abc import Callable, Generator, Iterable, Mapping
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from pathlib import Path
from threading import Event, Lock
from types import MappingProxyType
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from analysis.drain import with_steps
from analysis.errors import CheckpointError

CHUNK_BYTES = 1 << 20
MOST_WORKERS = 4  # threads that check
_POLL_SECONDS = 0.1
Answer = TypeVar("Answer")


class RangeFile:
    """An open file of which ranges are read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = path.stat().st_size
        self.bytes_read = 0
        self._file = path.open("rb", buffering=0)

    def read(self, start: int, nbytes: int) -> NDArray[np.uint8]:
        """The bytes from `start` on, in memory of their own."""
        target = np.empty(nbytes, np.uint8)
        filled = 0
        while filled < nbytes:
            count = os.preadv(self._file.fileno(), [target.data[filled:]], start + filled)
            if not count:
                raise CheckpointError(f"{self.path.name} became shorter while it was read.")
            filled += count
        self.bytes_read += nbytes
        return target

    def close(self) -> None:
        """Close it."""
        self._file.close()


class HashedFile(RangeFile):
    """A file whose SHA-256 comes from the ranges that are read of it, as far as these are in order.

    Several threads may read it.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._sha = hashlib.sha256()
        self._hashed = 0  # bytes from the start
        self._lock = Lock()

    def read(self, start: int, nbytes: int) -> NDArray[np.uint8]:
        """The bytes from `start` on; hashed if all before them are, but for a chunk."""
        with self._lock:
            if 0 <= start - self._hashed <= CHUNK_BYTES:
                self._hash_until(start)
            data = super().read(start, nbytes)
            if start == self._hashed:
                self._sha.update(data.data)
                self._hashed += nbytes
            return data

    def skip(self, end: int, count: Callable[[int], None]) -> None:
        """Read on and hash until `end`; `count` gets the bytes of each chunk."""
        while self._hashed < end:
            before = self._hashed
            with self._lock:
                self._hash_until(min(end, before + CHUNK_BYTES))
            count(self._hashed - before)

    def _hash_until(self, end: int) -> None:
        if end > self._hashed:
            self._sha.update(super().read(self._hashed, end - self._hashed).data)
            self._hashed = end

    def sha256(self, count: Callable[[int], None] = lambda _: None) -> str:
        """Of the whole file; what was not hashed yet is read."""
        self.skip(self.size, count)
        return self._sha.hexdigest()


class Files:
    """Files by path, opened when they are first read; those of `hashed` are shared."""

    def __init__(self, hashed: Mapping[Path, HashedFile] = MappingProxyType({})) -> None:
        self._hashed = hashed
        self._opened: dict[Path, RangeFile] = {}

    def read(self, path: Path, start: int, shape: tuple[int, ...]) -> NDArray[np.uint8]:
        """Bytes of a file as an array."""
        nbytes = math.prod(shape)
        if not nbytes:
            return np.zeros(shape, np.uint8)
        file = self._hashed.get(path) or self._opened.get(path)
        if file is None:
            file = self._opened[path] = RangeFile(path)
        return file.read(start, nbytes).reshape(shape)

    @property
    def bytes_read(self) -> int:
        """Of those that are not shared."""
        return sum(file.bytes_read for file in self._opened.values())

    def close(self) -> None:
        """Close them."""
        for file in self._opened.values():
            file.close()


class Stopped(Exception):
    """The answer of a thread is no longer needed."""


class Reader:
    """Progress of the thread that reads a shard, and its signal to stop."""

    def __init__(self, stop: Event) -> None:
        self._stop = stop
        self.done = 0

    def count(self, nbytes: int) -> None:
        """Count bytes as read; ends the thread if the answer is no longer needed."""
        self.done += nbytes
        if self._stop.is_set():
            raise Stopped


def ask_shards(
    names: Iterable[str], ask: Callable[[str, Reader], Answer]
) -> Generator[int, None, dict[str, Answer]]:
    """Call `ask` with each name and a `Reader` in threads; returns the answers by name, in order.

    Yields how many bytes are read. However this ends, by an error or because the caller stops, no
    thread keeps running.
    """
    stop = Event()
    readers = {name: Reader(stop) for name in names}
    with ThreadPoolExecutor(MOST_WORKERS, "verify") as pool:
        futures = {name: pool.submit(ask, name, reader) for name, reader in readers.items()}
        try:
            pending: set[Future[Answer]] = set(futures.values())
            while pending:
                yield sum(reader.done for reader in readers.values())
                _, pending = wait(pending, _POLL_SECONDS, FIRST_EXCEPTION)
        finally:
            stop.set()
    return {name: future.result() for name, future in futures.items()}


def shifted(task: Generator[int, None, Answer], before: int) -> Generator[int, None, Answer]:
    """A task that yields how many bytes are read so far, so many of them by other tasks."""
    return with_steps(task, lambda done: before + done)
