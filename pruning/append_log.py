"""Files of JSON lines that only grow: results as soon as they are known, to resume from.

The first line, the header, says what the file is about. A line is with the system before anything
else happens, so it survives a kill; one that the end of a process cut short goes.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import RawIOBase
from pathlib import Path
from typing import Any

from filelock import FileLock

from analysis.durable import PARTIAL
from analysis.errors import PlanError
from analysis.json_text import parse_json


class AppendLog:
    """An open log; without a file it writes nothing, as where another process does."""

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
    """Keep other processes from this file; the folder is made.

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
def appending(path: Path, whole: Sequence[bytes], header: Mapping[str, Any]) -> Iterator[AppendLog]:
    """The log at this place, continued after its whole lines, else begun with the header.

    For one process at a time, see `locked`; `whole` is of `whole_lines`.
    """
    # Unbuffered: a line is with the system before anything else happens.
    with path.open("r+b" if whole else "wb", buffering=0) as file:
        file.truncate(sum(map(len, whole)))
        file.seek(0, os.SEEK_END)
        log = AppendLog(file)
        if not whole:
            log.append(header)
        yield log


def whole_lines(path: Path) -> list[bytes]:
    """The lines of a log that reached the disk; none where there is no log."""
    lines = path.read_bytes().splitlines(True) if path.is_file() else []
    return [line for line in lines if line.endswith(b"\n")]


def parsed_lines(path: Path, whole: Sequence[bytes]) -> Iterator[tuple[int, Any]]:
    """The number and the content of each line after the header; damage is a PlanError."""
    for number, line in enumerate(whole[1:], 2):
        try:
            yield number, parse_json(line)
        except ValueError as error:
            raise damaged(path, number) from error


def damaged(path: Path, number: int) -> PlanError:
    """The error that names a line."""
    return PlanError(
        f"{path} is damaged in line {number}; remove the lines from there on to go on from what "
        "is before."
    )


def plain_json(value: Any) -> Any:
    """A value as a file gives it back: a tuple is a list."""
    return json.loads(json.dumps(value))
