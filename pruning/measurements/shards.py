"""Shards on disk: files of blocks, one for each process that writes.

A process appends to a shard of its own, so nobody waits, also in a folder of several machines. A
line is handed to the system at once, so it survives a kill; what a kill cut short is no line.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Final

from analysis.errors import StatsError
from analysis.files.content import mentions, read_whole
from analysis.files.durable import sync_folder
from analysis.files.naming import now, run_name
from analysis.stats.places import record_folders
from pruning.measurements.block import SEAL_BYTES, Block, Key, line_key

FOLDER: Final = "measurements"  # of the shards, in a statistics directory
SUFFIX: Final = ".jsonl"
MOST_BYTES: Final = 1 << 26  # of a shard; after it a process begins another
_MOST_FILES: Final = 4096  # whose lines a process keeps; a server sees many models and folders


@contextmanager
def refusals(path: Path) -> Iterator[None]:
    """What the system refuses, as one line."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise StatsError(f"Measurements cannot be written to {path}: {reason}.") from error


def append(path: Path, lines: bytes, *, sync: bool) -> None:
    """All of these lines at the end of a file, or none of them."""
    is_new = not path.exists()
    # Unbuffered, so that the lines are handed to the system at once.
    with path.open("ab", buffering=0) as file:
        size, written = file.tell(), 0
        try:
            while written < len(lines):
                written += file.write(lines[written:]) or 0
            if sync:
                os.fsync(file.fileno())
        except BaseException:  # also an interrupt between two parts of a line
            file.truncate(size)
            raise
    if is_new:
        sync_folder(path.parent)


def shard_paths(directories: Sequence[Path], model: str | None = None) -> list[Path]:
    """The shards that may have lines of a model, or of any, in the order in which they count."""
    folders = [folder / FOLDER for folder in record_folders(directories, model)]
    return [path for folder in folders for path in sorted(folder.glob(f"*{SUFFIX}"))]


def own_shard(folder: Path) -> Path:
    """The shard that this process appends to."""
    number = 0
    while (path := folder / _name(os.getpid(), number)).is_file():
        if path.stat().st_size < MOST_BYTES:
            break
        number += 1
    return path


@lru_cache(maxsize=64)
def _name(process: int, _number: int) -> str:
    """A name that no other process has, on any machine; a later one sorts after it."""
    when = now().replace(":", "").partition(".")[0].replace("-", "")
    digest = secrets.token_hex(4)
    return run_name(when, socket.gethostname(), str(process), digest=digest) + SUFFIX


State = tuple[int, int]  # of a file: when it changed, and its bytes


def state_of(path: Path) -> State | None:
    """The state of a file; None if it was deleted a moment ago, or cannot be looked at."""
    try:
        state = path.stat()
    except OSError:
        return None
    return state.st_mtime_ns, state.st_size


@dataclass(eq=False)
class Line:
    """A sealed line, which is parsed when its block is asked for."""

    key: Key
    name: str  # of the line, for people
    _raw: bytes
    _block: Block | StatsError | None = None

    @property
    def block(self) -> Block | StatsError:
        """Its block, or why it is none."""
        if self._block is None:
            try:
                self._block = Block.from_line(self._raw)
            except (ValueError, RecursionError) as error:
                self._block = _refusal(self.name, error)
            self._raw = b""
        return self._block


def _refusal(name: str, error: Exception) -> StatsError:
    words = " ".join(str(error).split())
    advice = "remove the line, and measure again what it was of."
    return StatsError(f"{name} cannot be read ({words}); {advice}")


@dataclass(eq=False)
class ShardFile:
    """The lines of a file, or why one is none; of a file that grew, the rest is read.

    Only lines of one model, and no line of a file that does not name it.
    """

    path: Path
    model: str | None  # its identity; None: any
    _lines: list[Line | StatsError] = field(default_factory=list)
    _count: int = 0  # of all lines so far, whatever model they are of
    _bytes: int = 0  # of these
    _last: bytes = b""  # the seal of the last of them
    _state: State | None = None
    _lock: Lock = field(default_factory=Lock)

    def lines(self, state: State) -> tuple[Line | StatsError, ...]:
        """The lines of the file, which is in this state."""
        with self._lock:
            if state != self._state:
                try:
                    is_named = self.model is None or mentions(self.path, self.model.encode())
                    self._read(read_whole(self.path) if is_named else b"")
                    self._state = state
                except (OSError, ValueError) as error:
                    reason = getattr(error, "strerror", None) or error
                    words = f"The measurements {self.path.name} cannot be read ({reason})."
                    self._lines, self._count, self._bytes = [StatsError(words)], 0, 0
                    self._state = None
            return tuple(self._lines)

    def _read(self, content: bytes) -> None:
        # What a kill cut short, or what is being written, is no line.
        content = content[: content.rfind(b"\n") + 1]
        has_grown = 0 < self._bytes < len(content)
        if not has_grown or content[: self._bytes][-SEAL_BYTES:] != self._last:
            self._lines, self._count, self._bytes = [], 0, 0
        for raw in content[self._bytes :].splitlines(keepends=True):
            self._count += 1
            name = f"Line {self._count} of the measurements {self.path.name}"
            try:
                key = line_key(raw)
                if self.model in (None, key[0]):
                    self._lines.append(Line(key, name, raw))
            except ValueError as error:
                self._lines.append(_refusal(name, error))
        self._bytes, self._last = len(content), content[-SEAL_BYTES:]


@lru_cache(maxsize=_MOST_FILES)
def shard(path: Path, model: str | None) -> ShardFile:
    """The lines of a model in a file, which this process parses once."""
    return ShardFile(path, model)
