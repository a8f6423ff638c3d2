"""Files that commands write: places are checked before any work, files are whole or not there."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.durable import write_durably, written_durably
from analysis.errors import StatsError
from app.tables.spreadsheets import csv_text


def check_place(path: Path) -> None:
    """Refuse a place that cannot be written to, before any work.

    Raises:
        StatsError: its folder does not exist.
    """
    if not path.absolute().parent.is_dir():
        raise StatsError(f"The folder of {path} does not exist; make it first.")


def check_ending(path: Path) -> None:
    """Refuse a table that could not be written, before any work.

    Raises:
        StatsError: another ending than those of `write_table`, or its folder does not exist.
    """
    if path.suffix not in (".csv", ".parquet"):
        raise StatsError(f"{path.name} has no known ending; use .csv or .parquet.")
    check_place(path)


def write_result(path: Path, content: Mapping[str, Any]) -> None:
    """Write JSON.

    Raises:
        StatsError: the place cannot be written to.
    """
    text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    try:
        write_durably(path, text.encode())
    except OSError as error:
        raise StatsError(f"The result cannot be written to {path}: {error.strerror}.") from error


def write_table(table: pd.DataFrame, path: Path) -> None:
    """Write a table: as parquet where the name says so, else as CSV.

    Raises:
        StatsError: the place cannot be written to.
    """
    try:
        if path.suffix == ".parquet":
            with written_durably(path) as draft:
                table.to_parquet(draft, index=False)
        else:
            write_durably(path, csv_text(table).encode())
    except OSError as error:
        raise StatsError(f"The table cannot be written to {path}: {error.strerror}.") from error
