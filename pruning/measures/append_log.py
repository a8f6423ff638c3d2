"""Append-only files of JSON lines: each result as soon as it is known, to resume from.

The first line, the header, says what the file is about. A line is handed to the system at once, so
it survives a kill; a line that a kill cut short is dropped.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import RawIOBase
from pathlib import Path
from typing import Any

from filelock import FileLock

from analysis.errors import PlanError
from analysis.files.durable import PARTIAL
from analysis.files.json_text import parse_json


class AppendLog:
    """An open log; without a file it writes nothing, for processes other than the writer."""

    def __init__(self, file: RawIOBase | None = None) -> None:
        self._file = file

    def append(self, line: Mapping[str, Any]) -> None:
        """Write a line; it survives the end of this process."""
        if self._file is not None:
            self._file.write((json.dumps(line) + "\n").encode())

    def sync(self) -> None:
        """Make all lines so far survive a loss of power."""
        if self._file is not None:
            os.fsync(self._file.fileno())


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keep other processes from this file; creates the folder.

    Raises:
        filelock.Timeout: another process has it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path.with_name(f".{path.name}{PARTIAL}.lock"), timeout=0)
    with lock:
        try:
            yield
        finally:
            Path(lock.lock_file).unlink(missing_ok=True)


@contextmanager
def appending(path: Path, lines: Sequence[bytes], header: Mapping[str, Any]) -> Iterator[AppendLog]:
    """The log at this path, continued after its whole lines (`whole_lines`), or a new one.

    For one process at a time, see `locked`.
    """
    # Unbuffered, so that a line is handed to the system at once.
    with path.open("r+b" if lines else "wb", buffering=0) as file:
        file.truncate(sum(map(len, lines)))
        file.seek(0, os.SEEK_END)
        log = AppendLog(file)
        if not lines:
            log.append(header)
        yield log


def whole_lines(path: Path) -> list[bytes]:
    """The lines of a log that reached the disk; none where there is no log."""
    lines = path.read_bytes().splitlines(True) if path.is_file() else []
    return [line for line in lines if line.endswith(b"\n")]


def parsed_lines(path: Path, lines: Sequence[bytes]) -> Iterator[tuple[int, Any]]:
    """Number and content of each line after the header; a damaged line is a PlanError."""
    for number, line in enumerate(lines[1:], 2):
        try:
            yield number, parse_json(line)
        except ValueError as error:
            raise damaged(path, number) from error


def damaged(path: Path, number: int) -> PlanError:
    """The error that names a line."""
    return PlanError(
        f"{path} is damaged in line {number}; remove that line and all after it to resume from the "
        "rest."
    )


def plain_json(value: Any) -> Any:
    """A value as it comes back from a JSON file: a tuple is a list."""
    return json.loads(json.dumps(value))
