"""The task of a search: the statistics that it ranks by, its samples, the search itself."""

from collections.abc import Generator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from analysis.errors import PlanError
from analysis.model import MoEModel, load_model_index
from analysis.progress import Progress
from analysis.stats.blend import Part
from app.settings import stats_store
from app.tasks.apart import open_checked
from app.tasks.calibration import calibrate_run, weights_run
from app.tasks.loading import placement_of
from app.tasks.quiet import quiet_transformers
from pruning.planning.make import check_request, evidence_of, provenance_of, spending_of
from pruning.planning.ranking import Selection, select
from pruning.recipe import Recipe, SearchSection
from pruning.requests.base import seq_len_of
from pruning.requests.recipe import (
    Machine,
    calibrate_requests,
    plan_request,
    weights_request,
)
from pruning.requests.search import SearchRequest
from pruning.schedules import allocate
from pruning.search.run import Task as Searched
from pruning.search.seeds import seeds_of, space_of
from pruning.search.settings import SearchSettings
from pruning.search.store import SEARCH, schedule_parameters

if TYPE_CHECKING:
    from analysis.calibration.loading import CalibrationSettings
    from pruning.evaluate.drawing import Drawn
    from pruning.search.result import SearchResult
    from pruning.search.sitting import Problem

Task = Generator[Progress, None, dict[str, Any]]


def search_run(request: SearchRequest) -> Generator[Progress, None, "SearchResult"]:
    """Make the statistics that are missing, then search or go on searching.

    Raises:
        UserError: whatever of the recipe, the model, the corpora or the folder does not fit.
    """
    from pruning.search.sitting import run_search

    quiet_transformers()
    problem = yield from problem_of(request)
    return (yield from run_search(problem, request.out))


def problem_of(request: SearchRequest) -> Generator[Progress, None, "Problem"]:
    """All that the search needs; refuses what cannot be before any long work."""
    from analysis.calibration.distributed import join

    recipe, machine = request.parsed(), request.machine
    asked = _section(recipe)
    settings = _settings(asked)
    model = load_model_index(recipe.model, revision=recipe.revision)
    check_request(plan_request(recipe, machine), model)
    with join().together():
        yield Progress("reading the search samples", 0, 0)
        drawn = _drawn(recipe, machine, model)
    selection = yield from _selected(recipe, machine, model)
    return _problem(selection, drawn, settings, (recipe, machine))


def _section(recipe: Recipe) -> SearchSection:
    if recipe.search is None:
        raise PlanError("The recipe has no key search; it needs at least search: {corpus: C}.")
    return recipe.search


def _settings(asked: SearchSection) -> SearchSettings:
    return SearchSettings(
        population=asked.population,
        elites=asked.elites,
        generations=asked.generations,
        max_transfer=asked.max_transfer,
        max_steps=asked.max_steps,
        seed=asked.seed,
        racing=asked.racing,
    )


def _drawn(recipe: Recipe, machine: Machine, model: MoEModel) -> "Drawn":
    """The search samples: documents that no calibration of the model has read, where known."""
    from analysis.calibration.loading import load_tokenizer
    from pruning.evaluate.drawing import Wanted, draw

    asked = _section(recipe)
    store = stats_store(machine.stats_dir)
    runs = store.of_model(model.identity, "routed")
    return draw(
        asked.corpus,
        open_checked(asked.corpus, store, allowed=recipe.allow_test_set),
        [run.manifest for run in runs],
        Wanted(asked.samples, seq_len_of(asked.corpus, recipe.seq_len)),
        lambda: load_tokenizer(model, trust_remote_code=machine.trust_remote_code),
    )


def _selected(
    recipe: Recipe, machine: Machine, model: MoEModel
) -> Generator[Progress, None, Selection]:
    parts = []
    requests = calibrate_requests(recipe, machine)
    for request, corpus in zip(requests, recipe.corpora, strict=bool(requests)):
        found = yield from calibrate_run(request)
        parts.append(Part(found, corpus.weight))
    if weights := weights_request(recipe, machine):
        yield from weights_run(weights)
    store = stats_store(machine.stats_dir)
    return select(plan_request(recipe, machine), model, store, parts)


def _problem(
    selection: Selection,
    drawn: "Drawn",
    settings: SearchSettings,
    where: tuple[Recipe, Machine],
) -> "Problem":
    from pruning.search.sitting import Problem

    recipe, machine = where
    evidence = evidence_of(selection, selection.request)
    asked = spending_of(selection.request, selection.model, evidence)
    scheduled = allocate(recipe.schedule.name, asked, evidence)
    spending, space = space_of(asked, scheduled)
    measure = _section(recipe).fitness
    sequences = drawn.sequences
    parameters = schedule_parameters(
        settings.to_dict(), measure, sequences.corpus, len(sequences.rows)
    )
    return Problem(
        model=selection.model,
        ranking=selection.table,
        constraints=spending.constraints,
        provenance=replace(
            provenance_of(selection, selection.request, asked),
            schedule=SEARCH,
            schedule_parameters=parameters,
        ),
        task=Searched(space, seeds_of(spending, recipe.schedule.name, scheduled), settings),
        drawn=drawn,
        measure=measure,
        running=_running(recipe, machine, drawn),
        recipe=recipe,
    )


def _running(recipe: Recipe, machine: Machine, drawn: "Drawn") -> "CalibrationSettings":
    """As the recipe's calibrations run."""
    from analysis.calibration.loading import CalibrationSettings

    own = recipe.calibrate
    return CalibrationSettings(
        seq_len=drawn.sequences.longest,
        seed=_section(recipe).seed,
        dtype=recipe.dtype,
        device=machine.device,
        batch_size=machine.batch_size,
        trust_remote_code=machine.trust_remote_code,
        attention=own.attention,
        placement=placement_of(own),
    )


def search_task(request: SearchRequest) -> Task:
    """Job form of `search_run`."""
    result = yield from search_run(request)
    best = result.best_entry
    return {"out": str(request.out), "fitness": best.fitness, "candidates": len(result.entries)}
