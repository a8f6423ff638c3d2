"""What an action would take, by the work that it states before it begins: for `--dry-run`."""

from collections.abc import Callable
from typing import Any, TypeVar

from analysis.numbers.words import time_in_words
from analysis.progress import Whole, bytes_of, stated_whole
from analysis.stats.rates import expected_seconds, known_rates, run_rates
from pruning.actions.action import Call, Outcome
from pruning.plan.sizes import format_bytes
from pruning.requests.model import ModelRequest
from pruning.tasks import Steps
from pruning.tasks.probing import probing, way_of

Asked = TypeVar("Asked", bound=ModelRequest)


def expected_cost(
    run: Callable[[Asked], Steps[Any]], memory: Callable[[Asked], int]
) -> Callable[[Call[Asked]], Steps[Outcome]]:
    """The cost of an action that states its work before it loads a model, and its memory."""

    def cost(call: Call[Asked]) -> Steps[Outcome]:
        request = call.request
        whole = yield from stated_whole(run(request))
        # Before a probe takes some; it refuses what the run would.
        size = 0 if whole.is_known else memory(request)
        yield from probing(whole, *way_of(request))
        return told(whole, size, request.command([str(path) for path in call.plans]))

    return cost


def told(whole: Whole, memory: int, *following: str, beside: int = 0) -> Outcome:
    """What work would take here: bytes to read, memory with Python's own, and time.

    `beside`: bytes that are read besides those that it costs by.
    """
    if whole.is_known:
        numbers: dict[str, float] = {"bytes": 0, "memory_bytes": 0, "seconds": 0.0}
        words = "all of it is known already"
    else:
        read, seconds = bytes_of(whole) + beside, expected_seconds(whole)
        words = (
            f"{format_bytes(read)} of weights to read, about {format_bytes(memory)} of memory, "
            f"about {time_in_words(seconds)}{by_what()}"
        )
        numbers = {"bytes": read, "memory_bytes": memory, "seconds": seconds}
    return Outcome(f"{words}; nothing was run", numbers, following=following)


def by_what() -> str:
    """What an expected time rests on, if not on runs."""
    if run_rates():
        return ""
    return ", by a probe of this machine" if known_rates() else ", by the rates of another machine"
