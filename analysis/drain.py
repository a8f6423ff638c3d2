"""Run a task to its end, for callers that show progress in their own way or not at all."""

from collections.abc import Callable, Generator
from contextlib import closing
from typing import TypeVar

Done = TypeVar("Done")
Step = TypeVar("Step")
Result = TypeVar("Result")


def drain(
    task: Generator[Step, None, Result], on_progress: Callable[[Step], object] | None = None
) -> Result:
    """The task's result; `on_progress` is called with each step."""
    while True:
        try:
            step = next(task)
        except StopIteration as stop:
            result: Result = stop.value
            return result
        if on_progress:
            on_progress(step)


def with_steps(
    task: Generator[Done, None, Result], step: Callable[[Done], Step]
) -> Generator[Step, None, Result]:
    """A task that yields, for what it says of its work, what `step` makes of that."""
    with closing(task):
        while True:
            try:
                done = next(task)
            except StopIteration as end:
                result: Result = end.value
                return result
            yield step(done)
