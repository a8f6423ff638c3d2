"""Reads text files that a person named: plans, recipes, schedules."""

from pathlib import Path

from analysis.errors import PlanError, nearest_name, sentence
from analysis.files.content import MOST_BYTES, read_whole

_WRITES = {"plan": "plan", "recipe": "recipe init"}  # kind of file -> the command that writes it


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
        if isinstance(error, FileNotFoundError):
            writes = f"; `moeprune {_WRITES[kind]} MODEL` writes one" if kind in _WRITES else ""
            reason += f".{hint}" if (hint := near_file(path)) else writes
    except ValueError as error:
        reason = str(error)
    raise PlanError(sentence(f"The {kind} {path} cannot be read: {reason}"))


def near_file(path: Path) -> str:
    """A question that names the nearest file of this kind in the folder of an absent one."""

    def kind(file: Path) -> str:
        return file.suffix.lower().replace(".yml", ".yaml")

    try:
        # Names of one kind are alike by their endings.
        names = {
            sibling.stem: sibling
            for sibling in path.parent.iterdir()
            if kind(sibling) == kind(path)
        }
    except OSError:
        return ""
    nearest = nearest_name(path.stem, names)
    return f" Did you mean {str(names[nearest])!r}?" if nearest else ""
