"""Durable files: written under a `.partial` name, synced, and given their own in one step.

A file that has its own name is whole, whatever happened while it was written: a kill, a full disk,
a loss of power.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PARTIAL = ".partial"  # the end of the name of whatever is not finished
# Some network file systems cannot sync a folder, and one that may not be read cannot be opened.
_NO_SYNC_OF_FOLDERS = frozenset((errno.EINVAL, errno.ENOTSUP, errno.EACCES))


def partial_of(path: Path) -> Path:
    """Where a file or folder lies until it is finished: beside its place, on the same disk."""
    return path.with_name(path.name + PARTIAL)


def sync_file(path: Path) -> None:
    """Make the bytes of a file durable, whoever wrote them."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable, where the file system can."""
    try:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        if error.errno not in _NO_SYNC_OF_FOLDERS:
            raise


@contextmanager
def written_durably(path: Path) -> Iterator[Path]:
    """Where to write a file; it gets the name `path`, in place of what has it, when the block ends.

    Raises:
        OSError: it cannot be written; what was there before still is, and nothing else.
    """
    draft = partial_of(path)
    try:
        yield draft
        sync_file(draft)
        draft.replace(path)
    except BaseException:
        with suppress(OSError):  # a disk that fails may not let go of it
            draft.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def write_durably(path: Path, data: bytes) -> None:
    """Write a whole file; see `written_durably`."""
    with written_durably(path) as draft:
        draft.write_bytes(data)
