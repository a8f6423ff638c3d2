"""Reads text files that a person named: plans, recipes, schedules."""

from pathlib import Path

from analysis.content import MOST_BYTES, read_whole
from analysis.errors import PlanError


def read_text_file(kind: str, path: Path, *, most_bytes: int = MOST_BYTES) -> str:
    """The text of a file that should hold a `kind`; a PlanError says why it cannot be read."""
    try:
        # As a file opened for text: one byte order mark is dropped, and all line ends are the same.
        text = read_whole(path, most_bytes).decode("utf-8-sig")
        return text.replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError:
        reason = "it is no UTF-8 text"
    except OSError as error:
        reason = error.strerror or type(error).__name__
    except ValueError as error:
        reason = str(error)
    raise PlanError(f"The {kind} {path} cannot be read: {reason}.")
