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
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bar
from rich.table import Table

from analysis.progress import Progress

if TYPE_CHECKING:
    import pandas as pd

Result = TypeVar("Result")
_INTERRUPTED = 130  # what a shell calls a command that Ctrl-C ended
# Into a file or a pipe, a table is as wide as it needs to be.
_WIDE = None if sys.stdout.isatty() else 240
# Names of models and corpora are not markup.
out = Console(soft_wrap=True, highlight=False, markup=False, emoji=False, width=_WIDE)
err = Console(stderr=True, soft_wrap=True, highlight=False, markup=False, emoji=False)


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
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    times = (TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
    # Into a file or a pipe, a bar would leave nothing but an empty line.
    bar = Bar(*columns, *times, console=err, transient=True, disable=not err.is_terminal)
    with _interruption() as stop, bar:
        try:
            while not stop:
                step = next(task)
                if step.note:
                    err.print(step.note)
                phase = f"{step.phase} ({step.unit})" if step.unit else step.phase
                if not bar.tasks or bar.tasks[0].description != phase:
                    for shown in bar.task_ids:
                        bar.remove_task(shown)
                    bar.add_task(phase, total=step.total or None)
                bar.update(bar.task_ids[0], completed=step.done, total=step.total or None)
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
        table.add_row(*map(_cell, row))
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
        out.print(f"{name:<{width}}  {_cell(value)}")


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
