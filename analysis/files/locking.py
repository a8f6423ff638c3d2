"""Locks between processes, also of several machines that share a folder."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock

from analysis.files.durable import PARTIAL, make_folder


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keep other processes from this file, which need not exist; creates the folder.

    Raises:
        filelock.Timeout: another process has it.
    """
    make_folder(path.parent)
    lock = FileLock(path.with_name(f".{path.name}{PARTIAL}.lock"), timeout=0)
    with lock:
        try:
            yield
        finally:
            Path(lock.lock_file).unlink(missing_ok=True)
