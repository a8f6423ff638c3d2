"""What commands print: tables and results on standard output, progress on standard error."""

import sys
from collections.abc import Generator, Mapping, Sequence
from typing import TypeVar

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

Result = TypeVar("Result")
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


def follow(task: Generator[Progress, None, Result]) -> Result:
    """Run a task to its end with a progress bar and the time left; its result.

    An interruption closes the task at once, so that it can save or clean up.
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
    with Bar(*columns, console=err, transient=True, disable=not err.is_terminal) as bar:
        display = _Display(bar)
        try:
            while True:
                display.show(next(task))
        except StopIteration as stop:
            result: Result = stop.value
            return result
        finally:
            task.close()


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
