"""Durable files: written as a draft, synced, then renamed in one step.

A file with its final name is always complete, whatever happened while it was written: a kill, a
full disk, a power loss, or another writer. Each of several writers has its own draft, and the last
one to finish wins.
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
from tempfile import TemporaryFile

from analysis.files.shipped import shipped_folder

PARTIAL = ".partial"  # suffix of everything unfinished
# Some network file systems cannot sync a folder, and an unreadable folder cannot be opened.
_NO_SYNC_OF_FOLDERS = frozenset((errno.EINVAL, errno.ENOTSUP, errno.EACCES))


def partial_of(path: Path) -> Path:
    """Draft path of a folder with one writer at a time, next to its final path."""
    return path.with_name(path.name + PARTIAL)


def sync_file(path: Path) -> None:
    """Sync the bytes of a file to disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Sync the names in a folder to disk, if the file system can."""
    try:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        if error.errno not in _NO_SYNC_OF_FOLDERS:
            raise


def make_folder(path: Path) -> None:
    """Make a folder, and those above it that are missing; all their names are synced to disk."""
    new = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in new:
        sync_folder(folder.parent)


@contextmanager
def written_durably(path: Path) -> Iterator[Path]:
    """A draft to write, `.NAME.RANDOM.partial`; at the end of the block it replaces `path`.

    A killed writer leaves its draft, and the next writer of the same name removes it.

    Raises:
        OSError: it cannot be written, and the old file is unchanged; or it is in place, but its
            name may not survive a power loss.
    """
    _remove_abandoned(path)
    with named_errors(path), _open_draft(path) as file:
        draft = Path(file.name)
        try:
            yield draft
            sync_file(draft)
            draft.replace(path)
        except BaseException:
            with suppress(OSError):  # a failing disk may refuse
                draft.unlink(missing_ok=True)
            raise
    sync_folder(path.parent)


@contextmanager
def named_errors(path: Path) -> Iterator[None]:
    """Give errors of the system that name no file, as of a full disk, this path."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def write_durably(path: Path, data: bytes) -> None:
    """Write a whole file; see `written_durably`."""
    with written_durably(path) as draft:
        draft.write_bytes(data)


def _open_draft(path: Path) -> BufferedWriter:
    """A new draft, locked while open: the system releases the lock if the writer dies."""
    while True:
        file = path.with_name(f".{path.name}.{secrets.token_hex(4)}{PARTIAL}").open("xb")
        with suppress(OSError):  # without locks in the file system, drafts of killed writers stay
            fcntl.flock(file, fcntl.LOCK_EX)
        if Path(file.name).exists():
            return file
        file.close()  # removed by another writer before it was locked


def _remove_abandoned(path: Path) -> None:
    """Remove the drafts of killed writers, whose locks are free."""
    shape = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{8}}{re.escape(PARTIAL)}")
    # Errors are ignored here: if the disk fails, writing will raise.
    with suppress(OSError):
        for draft in [
            sibling for sibling in path.parent.iterdir() if shape.fullmatch(sibling.name)
        ]:
            with suppress(OSError), draft.open("r+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                draft.unlink(missing_ok=True)  # its writer may just have renamed it


def unwritable(folder: Path) -> str:
    """Why nothing can be written to a folder, which may be absent; empty if something can."""
    if shipped := shipped_folder(folder):
        return f"{shipped} ships with the program"
    there = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    if not there.is_dir():
        return f"{there} is a file"
    try:
        # A system may allow what a file system refuses. Linux gives such a file no name, so that
        # nothing remains of it if the program is killed here.
        TemporaryFile(dir=there).close()
    except OSError as error:
        return error.strerror or type(error).__name__
    return ""
