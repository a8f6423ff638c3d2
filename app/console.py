"""What commands print: tables and results on standard output, progress on standard error."""

import signal
import sys
import threading
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bar
from rich.table import Table
from rich.text import Text

from analysis.progress import Progress

if TYPE_CHECKING:
    import pandas as pd

Result = TypeVar("Result")
_INTERRUPTED = 130  # what a shell calls a command that Ctrl-C ended
# Into a file or a pipe, a table is as wide as it needs to be.
_WIDE = None if sys.stdout.isatty() else 240
out = Console(soft_wrap=True, highlight=False, width=_WIDE)
err = Console(stderr=True, soft_wrap=True, highlight=False)


class _Display:
    """One bar for the current phase; notes go above it."""

    def __init__(self, bar: Bar) -> None:
        self._bar = bar
        self._task: TaskID | None = None
        self._phase = ""

    def show(self, step: Progress) -> None:
        if step.note:
            err.print(step.note, markup=False)
        if self._task is None or step.phase != self._phase:
            if self._task is not None:
                self._bar.remove_task(self._task)
            self._phase = step.phase
            self._task = self._bar.add_task(
                f"{step.phase} ({step.unit})" if step.unit else step.phase, total=step.total or None
            )
        self._bar.update(self._task, completed=step.done, total=step.total or None)


@contextmanager
def _interruption() -> Iterator[list[int]]:
    """Holds the first Ctrl-C back until the task can stop; a second one stops at once."""
    seen: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield seen
        return
    previous = signal.getsignal(signal.SIGINT)

    def note(number: int, frame: FrameType | None) -> None:
        del frame
        seen.append(number)
        err.print("stopping after this step; press Ctrl-C again to stop at once")
        signal.signal(signal.SIGINT, previous)

    signal.signal(signal.SIGINT, note)
    try:
        yield seen
    finally:
        signal.signal(signal.SIGINT, previous)


def follow(task: Generator[Progress, None, Result]) -> Result:
    """Run a task to its end with a progress bar and the time left; its result.

    Ctrl-C closes the task after its current step, where it can save its state or clean up.
    """
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    # Into a file or a pipe, a bar would leave nothing but an empty line.
    bar = Bar(*columns, console=err, transient=True, disable=not err.is_terminal)
    with _interruption() as stop, bar:
        display = _Display(bar)
        try:
            while not stop:
                display.show(next(task))
        except StopIteration as finished:
            result: Result = finished.value
            return result
        finally:
            task.close()
    err.print("interrupted; the same command goes on where it can")
    raise SystemExit(_INTERRUPTED)


def show_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A table on standard output; numbers to the right."""
    table = Table(title=title, title_justify="left", show_edge=False, pad_edge=False)
    for index, column in enumerate(columns):
        numeric = bool(rows) and all(isinstance(row[index], int | float) for row in rows)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        # Names of models and corpora are not markup.
        table.add_row(*(Text(_cell(value)) for value in row))
    out.print(table)


def show_frame(title: str, table: "pd.DataFrame", missing: str = "") -> None:
    """A table of pandas on standard output, its index left out."""
    show_table(title, tuple(map(str, table.columns)), plain_rows(table, missing))


def plain_rows(table: "pd.DataFrame", missing: str = "") -> list[list[object]]:
    """The rows of a table, `missing` where there is no value."""
    shown = table.astype(object).where(table.notna(), missing)
    return [list(row) for row in shown.itertuples(index=False, name=None)]


def counted(count: int, what: str) -> str:
    """A number of things, `what` being one of them: 1 path, 2 paths."""
    return f"{count:,} {what}{'s' * (count != 1)}"


def show_facts(facts: Mapping[str, object]) -> None:
    """Names and values, aligned."""
    width = max(map(len, facts))
    for name, value in facts.items():
        out.print(f"{name:<{width}}  {_cell(value)}", markup=False)


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
