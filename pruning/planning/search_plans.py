"""Plans and recipes of searches: what a search found as a plan, what the form asks for."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from analysis.criteria import get_criterion
from analysis.errors import PlanError, UserError
from analysis.model import MoEModel
from analysis.stats.store import StatsStore, digest_of, run_name
from analysis.stats.tables import GATES
from pruning.planning.choice import PlanChoice, plan_request
from pruning.planning.ranking import FREQUENCY, Selection, select
from pruning.planning.recipes import recipe_of
from pruning.recipe import Recipe
from pruning.recipe_file import recipe_from_yaml
from pruning.requests.base import validated
from pruning.requests.plan import PlanRequest
from pruning.requests.recipe import by_layer, weighed_corpora
from pruning.schedules import SCHEDULES
from pruning.search.store import KnownSearch, order_digest

Reading = tuple[tuple[str, ...], str]
"""Corpora as --corpus takes them, and a gate convention."""


def searched_selection(
    base: PlanRequest,
    search: KnownSearch,
    where: tuple[MoEModel, StatsStore],
    readings: Iterable[Reading],
) -> Selection:
    """The selection that makes the plan of a search: its numbers, in the order it was made on.

    A search says which order it was made on, by its digest, and not which corpus gave that order;
    the first of `readings`, the likeliest first, that gives the same order is taken, else the first
    single run: newer runs of a corpus stand before the one that the search has read.
    """
    model, store = where
    runs = [run.manifest.run_id for run in store.of_model(model.identity, "routed")]
    for request in _requests(base, search, readings, runs):
        try:
            selection = select(request, model, store)
        except UserError:
            continue  # a run that lacks what this criterion reads
        if order_digest(selection.table) == search.order:
            return selection
    raise PlanError(
        f"The search {search.search_id} was made on an order by {search.criterion} that no "
        f"statistics of {model.name} here give, perhaps because it was calibrated again since. Its "
        f"numbers alone serve with the order of any criterion: `moeprune plan --schedule-file "
        f"{search.path.name}`."
    )


def _requests(
    base: PlanRequest, search: KnownSearch, readings: Iterable[Reading], runs: Iterable[str]
) -> Iterator[PlanRequest]:
    criterion = get_criterion(search.criterion)
    tried: list[tuple[tuple[str, ...], tuple[str, ...], str]] = [((), (), "applied")]
    if criterion.source == "routed":
        tried = [(corpora, (), gate) for corpora, gate in readings]
        tried += [((), (run,), gate) for gate in GATES for run in runs]
    if not criterion.uses_gate:
        tried = [(corpora, named, "applied") for corpora, named, _ in tried]
    for corpora, named, gate in dict.fromkeys(tried):
        asked = search.constraints
        limits = {
            "multiple_of": asked.get("multiple_of", 1),
            "floor": asked.get("floor", 0),
            "protect": tuple(map(str, asked.get("protected", ()))),
            "pin": by_layer(asked.get("pinned", {})),
            "drop": by_layer(asked.get("dropped", {})),
            "layer_set": tuple(f"{layer}={kept}" for layer, kept in asked.get("fixed", {}).items()),
        }
        values = {
            **base.model_dump(),
            "criterion": search.criterion,
            "corpora": corpora,
            "runs": named,
            "gate": gate,
            "schedule": "file",
            "schedule_file": search.path,
            **limits,
        }
        yield validated(PlanRequest, values)


def readings_of(
    shown: Reading, recipe: Recipe | None, calibrated: Sequence[str]
) -> tuple[Reading, ...]:
    """Corpora and gates that may have given the order of a search, the likeliest first.

    `shown` is what is on screen, `calibrated` names all corpora that the model was calibrated on.
    """
    own = []
    if recipe is not None:
        own = [(weighed_corpora(recipe), str(recipe.gate))]
    single = [((corpus,), gate) for gate in GATES for corpus in calibrated]
    return tuple(dict.fromkeys([*own, shown, *single]))


def searching_recipe(selection: Selection, choice: PlanChoice, asked: Mapping[str, Any]) -> Recipe:
    """The recipe that searches on the budget, under the constraints and in the order on screen.

    The schedule on screen is among the first candidates, where it is one that a recipe can name.
    `asked` is the key search of the recipe.
    """
    named = choice.schedule if choice.schedule in SCHEDULES else "uniform"
    limits = PlanChoice(multiple_of=choice.multiple_of, protect=choice.protect, schedule=named)
    request = plan_request(limits, selection.request.model_dump())
    if selection.criterion.source != "routed" and named != FREQUENCY:
        request = request.model_copy(update={"corpora": ()})
    base = recipe_of(replace(selection, request=request)).to_dict()
    return recipe_from_yaml(yaml.safe_dump({**base, "search": dict(asked)}), name="of the search")


def new_search_id(recipe: Recipe, model: MoEModel, order: str) -> str:
    """Name of the folder of a search: the same for all runs that resume its log.

    Generations are left out: where fewer ended, more go on. `order` is of `order_digest`.
    """
    if recipe.search is None:
        raise ValueError("the recipe does not search")
    alike = recipe.model_copy(
        update={"model": "", "search": recipe.search.model_copy(update={"generations": 1})}
    )
    digest = digest_of({"model": model.identity, "recipe": alike.digest, "order": order})
    words = (model.name, recipe.criterion, Path(recipe.search.corpus).stem)
    return run_name(*words, digest=digest)
