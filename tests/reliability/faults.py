"""Faults put into a process: any step that changes the disk fails, or files cannot grow."""

import contextlib
import errno
import os
import resource
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Events of Python by which something on the disk changes, and where the place stands in them.
_CHANGES = {"os.rename": 0, "os.mkdir": 0, "os.remove": 0, "os.rmdir": 0, "os.truncate": 0}
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


class Disk:
    """A disk below a folder that fails at a step: opening to write, syncing, renaming, removing.

    Python has no way to take an audit hook off again, so there is one for the rest of the process,
    from the first `failing` on: also idle it slows what copies and reads files to half the speed.
    """

    def __init__(self) -> None:
        self._folder: str | None = None
        self._step = self._last = 0
        self._number, self._stays = errno.EIO, False
        self._sync = os.fsync
        self._is_heard = False

    @property
    def steps(self) -> int:
        """Steps that were taken since `failing` came into force."""
        return self._step

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self._folder is None:
            return
        if event == "open":
            place, _, flags = arguments
            if isinstance(flags, int) and flags & _WRITING:
                self._take(place)
        elif event in _CHANGES:
            self._take(arguments[_CHANGES[event]])

    def _take(self, place: object) -> None:
        if not isinstance(place, str | bytes | os.PathLike):
            return
        if not os.fsdecode(place).startswith(str(self._folder)):
            return
        self._count()

    def _count(self) -> None:
        self._step += 1
        if self._step == self._last or (self._stays and self._step > self._last > 0):
            raise OSError(self._number, os.strerror(self._number))

    def _synced(self, file: int) -> None:
        if self._folder is not None:
            self._count()
        self._sync(file)

    @contextlib.contextmanager
    def failing(self, folder: Path, step: int, number: int, *, stays: bool) -> Iterator[None]:
        """Let a step below a folder fail; 0: none, the steps are counted only.

        `number` is the errno of the failure; with `stays`, every later step fails as well.
        """
        self._step, self._last = 0, step
        self._number, self._stays = number, stays
        if not self._is_heard:
            sys.addaudithook(self._hear)
            self._is_heard = True
        self._folder = str(folder)
        os.fsync = self._synced
        try:
            yield
        finally:
            self._folder = None
            os.fsync = self._sync


DISK = Disk()


@contextlib.contextmanager
def full_at(size: int) -> Iterator[None]:
    """No file grows beyond this: write() fails as on a full disk, also that of other libraries."""
    before, writes_code = resource.getrlimit(resource.RLIMIT_FSIZE), not sys.dont_write_bytecode
    sys.dont_write_bytecode = True  # of a module imported now Python would keep the first bytes
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        sys.dont_write_bytecode = not writes_code
