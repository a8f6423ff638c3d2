"""Texts that a person adds in the browser, to calibrate or to evaluate on."""

import re
from pathlib import Path
from typing import Final

from analysis.errors import CorpusError
from analysis.files.durable import write_durably
from app.session.data import added_texts, corpus_files, texts_folder
from app.session.uploads import plain_text

TEXT_SUFFIXES: Final = (".txt", ".jsonl", ".json")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}")


def add_text(name: str, content: bytes, suffix: str = ".txt") -> str:
    """Keep a text under this name in the state folder of the server; its path.

    Raises:
        UserError: not text, nothing but white space, or a name that is unusable or taken.
    """
    if not _NAME.fullmatch(name):
        raise CorpusError(
            f"The name {name[:60]!r} is not usable: up to 40 letters, digits, '_' and '-', "
            "beginning with a letter or digit."
        )
    if not plain_text(name, content, "cut it").strip():
        raise CorpusError("The text is empty.")
    path = texts_folder() / f"{name}{suffix}"
    if any(Path(file).stem == name for file in corpus_files()):
        raise CorpusError(f"A text named {name} is there already; choose another name.")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_durably(path, content)
    return str(path)


def remove_text(path: str) -> None:
    """Remove a text that was added; what was measured on it stays."""
    if path in added_texts():
        Path(path).unlink(missing_ok=True)
