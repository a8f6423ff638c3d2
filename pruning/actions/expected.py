"""What an action would take, by the work that it states before it begins: for `--dry-run`."""

from collections.abc import Callable
from typing import Any, TypeVar

from analysis.numbers.words import time_in_words
from analysis.progress import RATES, stated_whole
from analysis.stats.rates import expected_seconds, known_rates
from pruning.actions.action import Call, Outcome
from pruning.plan.sizes import format_bytes
from pruning.requests.model import ModelRequest
from pruning.tasks import Steps

Asked = TypeVar("Asked", bound=ModelRequest)


def expected_cost(run: Callable[[Asked], Steps[Any]]) -> Callable[[Call[Asked]], Steps[Outcome]]:
    """The cost of an action that states its work before it loads a model."""

    def cost(call: Call[Asked]) -> Steps[Outcome]:
        whole = yield from stated_whole(run(call.request))
        read = round(whole.total.get("read", 0.0) * RATES["read"])
        seconds = expected_seconds(whole)
        words = "all of it is known already"
        if whole.total:
            by = "" if known_rates() else ", by the rates of another machine"
            words = f"{format_bytes(read)} of weights to read, about {time_in_words(seconds)}{by}"
        return Outcome(
            f"{words}; nothing was run",
            {"bytes": read, "seconds": seconds},
            following=(call.request.command([str(path) for path in call.plans]),),
        )

    return cost
