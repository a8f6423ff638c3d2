"""Run a task to its end, for callers that show progress in their own way or not at all."""

from collections.abc import Callable, Generator
from typing import TypeVar

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
