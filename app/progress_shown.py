"""Progress in words: a bar in a terminal, lines in a log."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, SpinnerColumn, Task, TextColumn
from rich.progress import Progress as Bar
from rich.text import Text

from analysis.foreign_text import in_json, in_terminal
from analysis.numbers.words import time_in_words
from analysis.pace import Pace
from analysis.progress import Progress

# Commands that end before say nothing; a log has a line a minute, and one where a phase begins.
QUIET_SECONDS: Final = 10.0
LINE_SECONDS: Final = 60.0


def count_of_step(step: Progress) -> str:
    """How far a phase is: 12,288/65,536 tokens, or 1.2 GiB/4 GiB."""
    if not step.total:
        return ""
    if step.unit == "bytes":
        from pruning.plan.sizes import format_bytes  # numpy and more, which not every command needs

        return f"{format_bytes(step.done)}/{format_bytes(step.total)}"
    return f"{step.done:,}/{step.total:,} {step.unit}".strip()


class Lines:
    """What a log says of a task: a line where a phase begins first, then at most one a minute."""

    def __init__(
        self,
        pace: Pace,
        write: Callable[[str], object],
        *,
        as_json: bool = False,
        quiet_seconds: float = QUIET_SECONDS,
    ) -> None:
        self._pace, self._write, self._as_json = pace, write, as_json
        self._quiet_seconds = quiet_seconds
        self._step: Progress | None = None
        self._said: set[str] = set()
        self._said_at = 0.0
        self._lock = threading.Lock()  # time passes in a thread of its own

    def take(self, step: Progress) -> None:
        """The next step, of which the pace knows."""
        self._step = step
        self.tick()

    def tick(self) -> None:
        """Write a line if it is time for one."""
        with self._lock:
            step, now = self._step, self._pace.seconds
            if step is None or now < self._quiet_seconds:
                return
            if step.phase in self._said and now - self._said_at < LINE_SECONDS:
                return
            self._said.add(step.phase)
            self._said_at = now
            self._write(in_json(self._facts(step)) if self._as_json else self._words(step))

    def _words(self, step: Progress) -> str:
        share, left = self._pace.fraction, self._pace.seconds_left
        facts = (
            "" if share is None else f"{share:.0%}",
            step.at,
            count_of_step(step) if step.done else "",
            "" if left is None else f"{time_in_words(left)} left",
        )
        words = ", ".join(filter(None, facts))
        return in_terminal(f"{step.phase}: {words}" if words else step.phase)

    def _facts(self, step: Progress) -> dict[str, dict[str, Any]]:
        share, left = self._pace.fraction, self._pace.seconds_left
        facts: dict[str, Any] = {
            "phase": step.phase,
            "at": step.at,
            "done": step.done,
            "total": step.total,
            "unit": step.unit,
            "fraction": None if share is None else round(share, 4),
            "seconds_left": None if left is None else round(left, 1),
        }
        return {"progress": facts}


@contextmanager
def lines_of(lines: Lines) -> Iterator[Callable[[Progress], None]]:
    """Write lines as steps come, and while none comes."""
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(1.0):
            lines.tick()

    thread = threading.Thread(target=watch, name="progress", daemon=True)
    thread.start()
    try:
        yield lines.take
    finally:
        stop.set()
        thread.join()


class TimeColumn(ProgressColumn):
    """The time left where it can be estimated, else the time passed; each says which it is."""

    def render(self, task: Task) -> Text:
        """The time of a task."""
        pace: Pace = task.fields["pace"]
        left, words = pace.seconds_left, "left"
        if left is None:
            left, words = pace.seconds, "elapsed"
        return Text(f"{time_in_words(left)} {words}")


@contextmanager
def one_bar(console: Console, pace: Pace) -> Iterator[Callable[[Progress], None]]:
    """One bar for a whole task."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=12),
        TextColumn("{task.fields[share]}"),
        TextColumn("{task.fields[counted]}", markup=False),
        TimeColumn(),
    )
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None, pace=pace, share="", counted="")

        def show(step: Progress) -> None:
            share = pace.fraction
            # What has not begun to count, such as reading a corpus, may never do so.
            bar.update(
                task,
                description=in_terminal(" ".join(filter(None, (step.phase, step.at)))),
                total=None if share is None else 1.0,
                completed=share or 0.0,
                share="" if share is None else f"{share:.0%}",
                counted=count_of_step(step) if step.done else "",
            )

        yield show
