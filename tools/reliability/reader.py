"""One thing that is read, and how files of its format are made wrong."""

import contextlib
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tools.reliability.mutations import (
    Mutation,
    bomb,
    bytes_changed,
    header_changed,
    json_changed,
    lines_changed,
    one_of,
    table_changed,
    text_changed,
)

JSON = one_of(json_changed, json_changed, json_changed, bytes_changed)
TABLE = one_of(table_changed, table_changed, bytes_changed)
LINES = one_of(lines_changed, lines_changed, bytes_changed)
TEXT = one_of(text_changed, bytes_changed)
TENSORS = one_of(header_changed, header_changed, bytes_changed)


@dataclass(frozen=True)
class Reader:
    """One thing that is read.

    Args:
        name: for people.
        file: what is changed, below the folder of examples.
        mutate: how it is changed.
        read: reads and uses it, given the folder of examples.
        bombs: whether it is also given a table that unpacks to gigabytes.
        lists: whether a message may be a list of problems, as of a recipe.
    """

    name: str
    file: str
    mutate: Mutation
    read: Callable[[Path], object]
    bombs: bool = False
    lists: bool = False

    def inputs(self, valid: bytes, *, with_bomb: bool) -> list[bytes]:
        """Inputs that are always tried, before random ones."""
        return [valid, b"", bomb(valid)] if self.bombs and with_bomb else [valid, b""]


@contextlib.contextmanager
def scratch(root: Path) -> Iterator[Path]:
    """A folder for what a reader writes; gone afterwards."""
    folder = root / "made"
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder)
