"""Search: the best allocation of a recipe's budget."""

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pruning.actions.action import Action, Call, Outcome, Table
from pruning.actions.expected import told
from pruning.requests.recipe_steps import SearchRequest
from pruning.search.store import RESULT_NAME
from pruning.tasks import Steps
from pruning.tasks.memory import search_memory
from pruning.tasks.probing import probing, way_of
from pruning.tasks.search import remaining_costs, search_run

if TYPE_CHECKING:
    from pruning.search.store import SearchResult


def _tell(call: Call[SearchRequest], result: "SearchResult") -> Outcome:
    """How the best compares with the schedules that the search began with."""
    best, cost, path = result.best_entry, result.cost, call.request.out / RESULT_NAME
    began = [entry for entry in result.entries if entry.origin not in ("random", "mutation")]
    rows = [(entry.origin, entry.generation, entry.fitness) for entry in began]
    rows.append((f"best ({best.origin})", best.generation, best.fitness))
    measure = str(result.header["fitness"])
    return Outcome(
        f"{measure} {best.fitness:.4f} of the best of {cost['candidates']:,} candidates in "
        f"{cost['seconds']:,.0f} s, "
        f"{cost['whole_layers'] / max(1, cost['layers']):.2f}x fewer layers than whole forwards",
        {"search": str(path), measure: best.fitness, **cost},
        (Table(f"{measure} on the search samples", ("allocation", "generation", measure), rows),),
        lies_in=path,
    )


def _cost(call: Call[SearchRequest]) -> Steps[Outcome]:
    """What the search takes at most: rounds and generations may repeat what is known."""
    whole = yield from remaining_costs(call.request)
    # Before a probe takes some; it refuses what the search would.
    memory = 0 if whole.is_known else search_memory(call.request)
    yield from probing(whole, *way_of(call.request))
    outcome = told(whole, memory)
    words = outcome.sentence
    return outcome if whole.is_known else replace(outcome, sentence=f"at most {words}")


ACTION: Final = Action(
    SearchRequest, search_run, _tell, "search recipe.yaml", "{about}", cost=_cost
)
