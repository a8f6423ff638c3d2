"""Output of commands: results on standard output, progress on standard error."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from textwrap import wrap
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

from analysis.foreign_text import in_json, in_terminal
from analysis.numbers.words import plain, plain_rows, time_in_words
from analysis.pace import Pace
from analysis.progress import Parts, Progress
from analysis.stats.rates import expected_seconds, keep_rates, known_rates
from app.progress_shown import Lines, lines_of, one_bar

if TYPE_CHECKING:
    import pandas as pd

Result = TypeVar("Result")
_INTERRUPTED = 130  # exit status of a command ended by Ctrl-C
# In a file or pipe, a table is as wide as needed, unless COLUMNS says how wide.
_WRAPS = sys.stdout.isatty() or "COLUMNS" in os.environ
_WIDE = None if _WRAPS else 240
_LEAST = 1e-4  # a smaller number is in scientific form
_COUNTS = 1e4, 1e15  # whole numbers between these have all their digits, of float type as well
_BETWEEN = 3  # characters between two columns of a table


@dataclass
class Speech:
    """How a command speaks: in words, or as one JSON object that is printed at its end."""

    quiet: bool = False  # no notes, no progress, no next command
    as_json: bool = False
    result: dict[str, Any] = field(default_factory=dict)
    tables: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    following: list[str] = field(default_factory=list)


_WORDS: Final = Speech()
_speech = ContextVar("speech", default=_WORDS)


class _Lines(Console):
    """A terminal, which obeys nothing in the text that is printed."""

    def print(self, *objects: Any, **options: Any) -> None:
        lines = (
            "\n".join(map(in_terminal, value.split("\n"))) if isinstance(value, str) else value
            for value in objects
        )
        super().print(*lines, **options)


class _Out(_Lines):
    """Standard output: what commands print, or with --json collect."""

    def print(self, *objects: Any, **options: Any) -> None:
        if _speech.get().as_json:
            if other := [value for value in objects if not isinstance(value, str)]:
                raise TypeError(f"a note of {type(other[0]).__name__}, not of text")
            _speech.get().notes.extend(line for text in objects if (line := text.strip()))
        else:
            super().print(*objects, **options)


# Names of models and corpora are not markup.
out = _Out(soft_wrap=True, highlight=False, markup=False, emoji=False, width=_WIDE)
err = _Lines(stderr=True, soft_wrap=True, highlight=False, markup=False, emoji=False)


@contextmanager
def speech(*, quiet: bool, as_json: bool) -> Iterator[None]:
    """How the command in this block speaks."""
    before = _speech.set(Speech(quiet, as_json))
    try:
        yield
    finally:
        _speech.reset(before)


def print_collected(command: str, error: str = "") -> None:
    """With --json, print what was collected as one object."""
    spoken = _speech.get()
    if not spoken.as_json:
        return
    collected = {
        "command": command,
        "result": spoken.result,
        "tables": spoken.tables,
        "notes": spoken.notes,
        "next": spoken.following,
    }
    if error:
        collected["error"] = error
    sys.stdout.write(in_json(collected, default=plain) + "\n")


def note(words: str) -> None:
    """Print a note besides the result; not with --quiet."""
    if not _speech.get().quiet:
        out.print(_in_lines(in_terminal(words)))


def note_command(line: str) -> None:
    """Print a command line besides the result, in one piece, to be copied; not with --quiet."""
    if not _speech.get().quiet:
        out.print(in_terminal(line))


def finish(words: str, result: Mapping[str, object], *following: str) -> None:
    """Print a command's result in words, and the commands that come next.

    `result` has its numbers by name, for --json: bytes, counts and fractions as plain numbers.
    """
    if _speech.get().as_json:
        _speech.get().result.update(result)
        _speech.get().following.extend(following)
        return
    say(words)
    for line in following:
        note_command(f"next: {line}")


def say(words: str) -> None:
    """Print a result in words, in lines as wide as the window."""
    out.print(_in_lines(words))


def _in_lines(words: str) -> str:
    """Words in lines as wide as the window, none of them broken."""
    if not _WRAPS:
        return words
    lines = (
        wrap(line, out.width, break_long_words=False, break_on_hyphens=False) or [""]
        for line in words.split("\n")
    )
    return "\n".join(line for paragraph in lines for line in paragraph)


def show_object(result: Mapping[str, object]) -> None:
    """Print a result that is a JSON object."""
    if _speech.get().as_json:
        _speech.get().result.update(result)
    else:
        out.print(in_json(result, default=str))


@contextmanager
def _interruption() -> Iterator[list[int]]:
    """Hold the first Ctrl-C back until the task can stop; a second one stops at once."""
    signals: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield signals
        return
    previous = signal.getsignal(signal.SIGINT)

    def note(number: int, frame: FrameType | None) -> None:
        del frame
        signals.append(number)
        err.print("stopping after this step; press Ctrl-C again to stop at once")
        signal.signal(signal.SIGINT, previous)

    signal.signal(signal.SIGINT, note)
    try:
        yield signals
    finally:
        signal.signal(signal.SIGINT, previous)


def follow(task: Generator[Progress, None, Result], pace: Pace | None = None) -> Result:
    """Run a task with a progress bar, or lines where there is no terminal; return its result.

    Ctrl-C closes the task after its current step, so that it can save its state or clean up. A
    task that is one of several, see `Course`, has the pace of all.
    """
    spoken, expected = _speech.get(), None
    own = pace or Pace(usual=known_rates)
    with _interruption() as stop, _shown(spoken, own) as show:
        try:
            while not stop:
                step = next(task)
                if step.note and not spoken.quiet:
                    words = in_json({"note": step.note}) if spoken.as_json else step.note
                    err.print(in_terminal(words))
                if expected is None and step.whole and step.whole.total:
                    expected = expected_seconds(step.whole)
                own.take(step)
                show(step)
        except StopIteration as finished:
            result: Result = finished.value
            if pace is None:
                conclude(spoken, own, expected)
            return result
        finally:
            task.close()
    _keep(own)  # the run that resumes it knows them
    err.print("interrupted; run the same command to resume")
    raise SystemExit(_INTERRUPTED)


class Course:
    """Several tasks of one command: one share and one time left, over all of them.

    `parts` has what each is expected to cost, by name, before any has begun.
    """

    def __init__(self, parts: Parts) -> None:
        self.parts, self._pace = parts, Pace(usual=known_rates)
        self._expected = expected_seconds(parts.whole)

    def follow(self, name: str, task: Generator[Progress, None, Result]) -> Result:
        """Run the task of this name, as `follow`; one that is known was expected for nothing."""
        expected = expected_seconds(self.parts.part(name))
        result = follow(self.parts.run(name, task), self._pace)
        if self.parts.part(name).is_known:
            self._expected -= expected
        return result

    def end(self) -> None:
        """All tasks are over: keep the rates, and say how long it took."""
        conclude(_speech.get(), self._pace, self._expected)


def conclude(spoken: Speech, pace: Pace, expected: float | None) -> None:
    """Keep the rates of a task that took a while, and say how long it took."""
    if expected is None or not pace.rates:
        return
    _keep(pace)
    if not (spoken.quiet or spoken.as_json):
        took = time_in_words(pace.seconds)
        err.print(f"took {took}; {time_in_words(expected)} were expected")


def _keep(pace: Pace) -> None:
    try:
        keep_rates(pace.rates)
    except OSError as error:
        err.print(f"the rates of this machine cannot be kept: {error.strerror}")


def _shown(spoken: Speech, pace: Pace) -> AbstractContextManager[Callable[[Progress], None]]:
    """How steps are shown: a bar, lines, or not at all."""
    if spoken.quiet:
        return nullcontext(lambda _: None)
    if err.is_terminal and not spoken.as_json:
        return one_bar(err, pace)
    return lines_of(Lines(pace, err.print, as_json=spoken.as_json))


def show_table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    spare: Sequence[str] = (),
    whole: Sequence[str] = (),
) -> None:
    """Print a table; numbers are right-aligned.

    Words are not broken, nor the columns `whole`: if the window is too narrow, the columns
    `spare` are left out, last first; if that is not enough, rows become columns.
    """
    if _speech.get().as_json:
        _speech.get().tables.append({"title": title.strip(), "columns": columns, "rows": rows})
        return
    cells = _cells(rows)
    widths = _column_widths(columns, cells, spare, whole)
    if widths is None:
        _show_turned(title, columns, cells)
        return
    lead = "\n" if title.startswith("\n") else ""  # a blank line before the table
    words = f"{lead}{in_terminal(title.strip())}"
    table = Table(title=words, title_justify="left", show_edge=False, pad_edge=False)
    for index, width in widths.items():
        numeric = bool(rows) and all(isinstance(row[index], int | float) for row in rows)
        table.add_column(columns[index], justify="right" if numeric else "left", width=width)
    for row in cells:
        table.add_row(*(row[index] for index in widths))
    out.print(table)


def _cells(rows: Sequence[Sequence[object]]) -> list[list[str]]:
    """The cells in words; numbers of a column have equally many decimals, at most five."""
    columns = []
    for values in zip(*rows, strict=True):
        cells = [_cell(value) for value in values]
        if all(isinstance(value, float) and _LEAST <= abs(value) < 10 for value in values):
            decimals = min(5, max(len(cell.partition(".")[2]) for cell in cells))
            cells = [f"{value:.{decimals}f}" for value in values]
        columns.append(cells)
    return [list(row) for row in zip(*columns, strict=True)]


def _column_widths(
    columns: Sequence[str],
    cells: Sequence[Sequence[str]],
    spare: Sequence[str],
    whole: Sequence[str],
) -> dict[int, int] | None:
    """Width in characters by column index; None if the words do not fit."""
    lines = [(name, *(row[index] for row in cells)) for index, name in enumerate(columns)]
    widths = {index: max(map(cell_len, texts)) for index, texts in enumerate(lines)}
    words = {
        index: max((cell_len(word) for text in texts for word in text.split()), default=0)
        for index, texts in enumerate(lines)
    }
    for index, name in enumerate(columns):
        if name in whole:
            words[index] = widths[index]

    def room(sizes: Mapping[int, int]) -> int:
        return out.width - sum(sizes.values()) - _BETWEEN * (len(sizes) - 1)

    for name in reversed(spare):
        if room(words) < 0:
            del widths[columns.index(name)], words[columns.index(name)]
    if room(words) < 0:
        return None
    while room(widths) < 0:
        widest = max(widths, key=lambda index: (widths[index] > words[index], widths[index]))
        widths[widest] -= 1
    return widths


def _show_turned(title: str, columns: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    """Rows as columns, as many beside each other as fit; one that does not, as lines."""
    for line in filter(None, [title]):
        out.print(line)
    width = max(map(cell_len, columns))
    waiting = [(max(map(cell_len, row)) + _BETWEEN, row) for row in cells]
    while waiting:
        taken: list[tuple[int, Sequence[str]]] = []
        while waiting and width + sum(size for size, _ in taken) + waiting[0][0] <= out.width:
            taken.append(waiting.pop(0))
        if taken:
            _show_columns(columns, [row for _, row in taken])
        else:
            _, row = waiting.pop(0)
            for name, value in zip(columns, row, strict=True):
                if value:
                    _show_fact(name, value, width)
        if waiting:
            out.print()


def _show_columns(names: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Rows as columns of a table, below their first cells."""
    table = Table(show_edge=False, pad_edge=False)
    for head in (names[0], *(row[0] for row in rows)):
        table.add_column(head, no_wrap=True)
    for name, *values in zip(names[1:], *(row[1:] for row in rows), strict=True):
        if any(values):
            table.add_row(name, *values)
    out.print(table)


def _show_fact(name: str, value: str, width: int) -> None:
    """A name and a value, whose words are not broken; `width` is that of all names."""
    room = max(1, out.width - width - 2)
    lines = wrap(value, room, break_long_words=False, break_on_hyphens=False)
    for number, line in enumerate(lines or [""]):
        out.print(f"{'' if number else name:<{width}}  {line}".rstrip())


def ranges_of_rows(rows: Iterable[Sequence[object]]) -> list[list[object]]:
    """Merge neighbouring rows of layers that differ in the first cell only: 0-5."""
    ranges: list[list[object]] = []
    for first, *rest in rows:
        if ranges and ranges[-1][1:] == rest:
            start = str(ranges[-1][0]).partition("-")[0]
            ranges[-1][0] = f"{start}-{first}"
        else:
            ranges.append([first, *rest])
    return ranges


def show_frame(title: str, table: "pd.DataFrame") -> None:
    """Print a pandas table without its index."""
    show_table(title, tuple(map(str, table.columns)), plain_rows(table))


def show_texts(texts: Mapping[str, str], values: Mapping[str, object]) -> None:
    """Texts next to each other, below their names; with --json the result has the values."""
    if _speech.get().as_json:
        _speech.get().result.update(values)
        return
    if not texts:
        return
    table = Table(show_edge=False, pad_edge=False)
    for name in texts:
        table.add_column(name, overflow="fold")
    table.add_row(*texts.values())
    out.print(table)


def show_facts(facts: Mapping[str, object]) -> None:
    """Names and values, aligned."""
    if _speech.get().as_json:
        show_table("", ("name", "value"), list(facts.items()))
        return
    width = max(map(len, facts))
    for name, value in facts.items():
        _show_fact(name, _cell(value), width)


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        is_count = value.is_integer() and _COUNTS[0] <= abs(value) < _COUNTS[1]
        return f"{value:,.0f}" if is_count else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else in_terminal(value)
