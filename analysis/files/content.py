"""What files hold: their bytes, in bounds, and digests, remembered while a file stays as it is.

And the digest of a document's words, whatever file it is in.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import stat
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path

from analysis.lazy import pa

MOST_BYTES = 1 << 28  # of a file that is read whole; a plan of a large model has a few MiB
_WHOLE = 1 << 30  # bytes; of larger files pieces are read
_PIECES, _PIECE = 256, 1 << 20
_WORDS_AT_ONCE = 1 << 16
# A file may change twice within a clock tick; only older ones may be known by their time.
_SETTLED_NS = 2 * 10**9


def read_whole(path: Path, most_bytes: int = MOST_BYTES) -> bytes:
    """The bytes of a regular file; no more than `most_bytes` are read of one that grows.

    Raises:
        OSError: it cannot be read, or is no regular file: a pipe or a device may never end.
        ValueError: it is larger.
    """
    size = check_regular(path).st_size
    with path.open("rb") as file:
        # To read a number of bytes reserves as many: address space may be scarce.
        data = file.read(min(size, most_bytes) + 1)
        if len(data) > size:  # it grows
            data += file.read(most_bytes + 1 - len(data))
    if len(data) > most_bytes:
        raise ValueError(f"it is larger than {most_bytes:,} bytes")
    return data


def mentions(path: Path, words: bytes) -> bool:
    """Whether the bytes of a regular file have these words; none of them stay in memory.

    Raises:
        OSError: it cannot be read, or is no regular file.
    """
    check_regular(path)
    buffer = bytearray(_PIECE)
    before = 0  # bytes of the piece before, in which the words may begin
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(memoryview(buffer)[before:]):
            end = before + count
            if buffer.find(words, 0, end) >= 0:
                return True
            before = min(end, len(words) - 1)
            buffer[:before] = buffer[end - before : end]
    return not words


def check_regular(path: Path) -> os.stat_result:
    """The state of a regular file; an OSError says what else it is."""
    state = path.stat()
    if stat.S_ISDIR(state.st_mode):
        raise IsADirectoryError(0, "it is a folder; name the file in it")
    if not stat.S_ISREG(state.st_mode):
        raise OSError(0, "it is no regular file")
    return state


def arrow_file(path: Path, mode: str = "rb") -> pa.NativeFile:
    """A local file of any name; pyarrow takes a path with a colon for an address."""
    return pa.OSFile(os.fsencode(path), mode)


def settled_state(path: Path) -> tuple[int, ...] | None:
    """Numbers that change whenever the file does; None while it is too new for that."""
    state = check_regular(path)
    if time.time_ns() - state.st_mtime_ns < _SETTLED_NS:
        return None
    return state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def known_sha256(path: Path) -> str:
    """As `file_sha256`, but a file that did not change is read once in a process."""
    return _digest_once(file_sha256, path)


def _digest_once(digest: Callable[[Path], str], path: Path) -> str:
    state = settled_state(path)
    return digest(path) if state is None else _remembered(digest, path, state)


@functools.lru_cache(maxsize=4096)
def _remembered(digest: Callable[[Path], str], path: Path, state: tuple[int, ...]) -> str:
    """`state` is only part of the cache key."""
    return digest(path)


def known_digest(path: Path) -> str:
    """64 hex digits of what a file holds, or the files of a folder by name; read once in a process.

    Of a file of more than 1 GiB its size and 256 evenly spread MiB are read.
    """
    if not path.is_dir():
        return _digest_once(_sampled_digest, path)
    sha = hashlib.sha256()
    for file in sorted(entry for entry in path.rglob("*") if entry.is_file()):
        sha.update(f"{file.relative_to(path)} {known_digest(file)}\n".encode())
    return sha.hexdigest()


def _sampled_digest(path: Path) -> str:
    size = check_regular(path).st_size
    if size <= _WHOLE:
        return file_sha256(path)
    sha = hashlib.sha256(size.to_bytes(8, "little"))
    with path.open("rb") as file:
        for number in range(_PIECES):
            file.seek(number * (size - _PIECE) // (_PIECES - 1))
            sha.update(file.read(_PIECE))
    return sha.hexdigest()


def document_digest(text: str) -> str:
    """SHA-256 of a text's words, regardless of whitespace; holds few of them at once."""
    sha, words = hashlib.sha256(), (match.group() for match in re.finditer(r"\S+", text))
    separator = ""
    while some := list(islice(words, _WORDS_AT_ONCE)):
        sha.update((separator + " ".join(some)).encode())
        separator = " "
    return sha.hexdigest()
