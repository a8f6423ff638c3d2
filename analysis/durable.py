"""Durable files: written as a draft, synced, and given their own name in one step.

A file that has its own name is whole, whatever happened while it was written: a kill, a full disk,
a loss of power, another writer of the same name. Of several writers each has a draft of its own,
and the last to end has the file.
"""

import errno
import fcntl
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedWriter
from pathlib import Path

PARTIAL = ".partial"  # the end of the name of whatever is not finished
# Some network file systems cannot sync a folder, and one that may not be read cannot be opened.
_NO_SYNC_OF_FOLDERS = frozenset((errno.EINVAL, errno.ENOTSUP, errno.EACCES))


def partial_of(path: Path) -> Path:
    """Draft path of a folder with one writer at a time, next to its final path."""
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

    That is an empty file `.NAME.RANDOM.partial`, this writer's own. A killed writer leaves it, and
    the next one of the same name removes it.

    Raises:
        OSError: it cannot be written, and what was there before still is; or it has been written
            and stands there, but whether its name outlasts a loss of power is not known.
    """
    _remove_abandoned(path)
    with _own_draft(path) as held:
        draft = Path(held.name)
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


def _own_draft(path: Path) -> BufferedWriter:
    """A new draft, locked while it is open: the system lets go of the lock when a writer dies."""
    while True:
        held = path.with_name(f".{path.name}.{secrets.token_hex(4)}{PARTIAL}").open("xb")
        with suppress(OSError):  # not every file system has locks; there drafts stay
            fcntl.flock(held, fcntl.LOCK_EX)
        if Path(held.name).exists():
            return held
        held.close()  # removed by another writer before it was locked


def _remove_abandoned(path: Path) -> None:
    """Remove the drafts of a file whose writers were killed: their locks are free."""
    shape = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{8}}{re.escape(PARTIAL)}")
    # Where a draft cannot be removed, writing is what shows whether the disk fails.
    with suppress(OSError):
        for draft in [each for each in path.parent.iterdir() if shape.fullmatch(each.name)]:
            with suppress(OSError), draft.open("r+b") as left:
                fcntl.flock(left, fcntl.LOCK_EX | fcntl.LOCK_NB)
                draft.unlink(missing_ok=True)  # gone under this name if its writer ended just now
