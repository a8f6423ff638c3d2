"""Reads text files that a person named: plans, recipes, schedules."""

from pathlib import Path

from analysis.errors import PlanError


def read_text_file(kind: str, path: Path, *, most_bytes: int | None = None) -> str:
    """The text of a file that should hold a `kind`; a PlanError says why it cannot be read."""
    try:
        if most_bytes is not None and path.stat().st_size > most_bytes:
            raise PlanError(f"{path} is too large for a {kind}.")
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        reason = "it is no UTF-8 text"
    except IsADirectoryError:
        reason = "it is a folder; name the file in it"
    except OSError as error:
        reason = error.strerror or type(error).__name__
    raise PlanError(f"The {kind} {path} cannot be read: {reason}.")
