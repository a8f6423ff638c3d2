"""Files that commands write: places are checked before any work, files are whole or not there."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.durable import write_durably, written_durably
from analysis.errors import StatsError

if TYPE_CHECKING:
    import pandas as pd


def check_place(path: Path) -> None:
    """Refuse a place that cannot be written to, before any work."""
    if not path.absolute().parent.is_dir():
        raise StatsError(f"The folder of {path} does not exist; make it first.")


def check_ending(path: Path) -> None:
    """Refuse a table that `write_table` could not write, before any work."""
    if path.suffix not in (".csv", ".parquet"):
        raise StatsError(f"{path.name} has no known ending; use .csv or .parquet.")
    check_place(path)


def write_result(path: Path, content: Mapping[str, Any]) -> None:
    """Write JSON."""
    text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    with _told(path, "result"):
        write_durably(path, text.encode())


def write_table(table: "pd.DataFrame", path: Path) -> None:
    """Write a table as its name says, which `check_ending` has let pass: parquet or CSV."""
    if path.suffix != ".parquet":
        write_csv(table, path)
        return
    with _told(path, "table"), written_durably(path) as draft:
        table.to_parquet(draft, index=False)


def write_csv(table: "pd.DataFrame", path: Path) -> None:
    """Write a table as CSV, whatever its name."""
    from app.tables.spreadsheets import csv_text

    with _told(path, "table"):
        write_durably(path, csv_text(table).encode())


@contextmanager
def _told(path: Path, what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StatsError(f"The {what} cannot be written to {path}: {error.strerror}.") from error
