"""Reads text files that a person named: plans, recipes, schedules."""

import stat
from pathlib import Path

from analysis.errors import PlanError

MOST_BYTES = 1 << 28  # a plan of a large model has a few MiB


def read_text_file(kind: str, path: Path, *, most_bytes: int = MOST_BYTES) -> str:
    """The text of a file that should hold a `kind`; a PlanError says why it cannot be read.

    Pipes and devices are refused, since they may never end or never answer; of a file that grows
    no more than `most_bytes` is read.
    """
    try:
        data = read_regular(path, most_bytes + 1)
        if len(data) > most_bytes:
            raise PlanError(f"{path} is too large for a {kind}.")
        # As a file opened for text: one byte order mark is dropped, and all line ends are the same.
        return data.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError:
        reason = "it is no UTF-8 text"
    except OSError as error:
        reason = error.strerror or type(error).__name__
    raise PlanError(f"The {kind} {path} cannot be read: {reason}.")


def read_regular(path: Path, most_bytes: int) -> bytes:
    """The first `most_bytes` of a regular file; an OSError says what else the path names."""
    if stat.S_ISDIR(mode := path.stat().st_mode):
        raise IsADirectoryError(0, "it is a folder; name the file in it")
    if not stat.S_ISREG(mode):
        raise OSError(0, "it is no regular file")
    with path.open("rb") as file:
        return file.read(most_bytes)
