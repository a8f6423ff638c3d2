"""Searches: the statistics to rank by, the samples, the search itself."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from analysis.corpora.early import check_streamable, within_context
from analysis.errors import PlanError
from analysis.files.durable import unwritable
from analysis.model.layer_costs import layer_costs
from analysis.model.moe_model import MoEModel
from analysis.model.opening import load_model_index
from analysis.progress import Costs, Parts, Progress, Whole, scaled, stated_whole
from analysis.stats.manifest import Part
from analysis.stats.store import StatsStore, stats_store
from pruning.measurements.table import Measurements
from pruning.measures.drawing import draw
from pruning.measures.drawn_samples import DrawnSamples
from pruning.measures.sample_settings import SampleSettings
from pruning.planning.files import check_spec
from pruning.planning.make import budget_of, units_of
from pruning.planning.measured import sensitivity_on
from pruning.planning.ranking import Ranking
from pruning.records.sensitivity import SensitivityStore
from pruning.requests.calibration import seq_len_of
from pruning.requests.evaluation import SensitivityRequest
from pruning.requests.machine import Machine
from pruning.requests.recipe import Recipe, SearchSection
from pruning.requests.recipe_steps import (
    SearchRequest,
    calibrate_requests,
    sensitivity_request,
    spec_request,
    weights_request,
)
from pruning.schedules import MEASURED, allocate
from pruning.search.costs import RunCosts, search_parts
from pruning.search.evolution import starts_without_room
from pruning.search.run import Task, remaining
from pruning.search.space import seeds_of, space_of
from pruning.search.store import SEARCH, schedule_parameters
from pruning.study import Study
from pruning.tasks import Steps
from pruning.tasks.apart import open_checked
from pruning.tasks.calibration import calibrate_run, known_run, weights_costs, weights_run
from pruning.tasks.evaluation import check_drawn, expected_tokens, say_drawn
from pruning.tasks.loading import (
    quiet_transformers,
    run_settings,
    search_placement,
    together,
    tokenizer_loader,
)
from pruning.tasks.sensitivity import sensitivity_costs, sensitivity_run

if TYPE_CHECKING:
    from pruning.search.sitting import Problem
    from pruning.search.store import SearchResult


def search_folder(recipe: Path) -> Path:
    """The default folder of the search of a recipe."""
    return recipe.with_name(f"{recipe.stem}.search")


def search_run(request: SearchRequest) -> "Steps[SearchResult]":
    """Make missing statistics, then search or resume a search."""
    if reason := unwritable(request.out):
        raise PlanError(
            f"{request.out} cannot take the search: {reason}; give a folder that can with --out."
        )
    parts = search_costs(request)
    problem = yield from problem_of(request, parts)
    from pruning.search.sitting import run_search

    quiet_transformers()
    return (yield from parts.run(SEARCH, run_search(problem, request.out)))


def search_costs(request: SearchRequest) -> Parts:
    """What the statistics and the search of a recipe cost, if nothing of it is known."""
    recipe, machine = request.parsed(), request.machine
    if recipe.search is None:
        return Parts({})
    model = load_model_index(recipe.model, revision=recipe.revision)
    searching = {SEARCH: searching_costs(recipe, machine, model)}
    return Parts(searching | statistics_costs(recipe, machine, model))


def remaining_costs(request: SearchRequest) -> Steps[Whole]:
    """What a search takes, without what earlier runs measured; nothing is run or written.

    Sensitivity and scores are looked up once all that they read is there. A refinement, and the
    search after it, count as a whole.
    """
    recipe, machine = request.parsed(), request.machine
    section = _section(recipe)
    model = load_model_index(recipe.model, revision=recipe.revision)
    if machine.stream_layers:
        check_streamable(model)
    parts, requests = search_costs(request), calibrate_requests(recipe, machine)
    runs = []
    for number, calibration in enumerate(requests):
        if run := (yield from known_run(calibration)):
            parts.expect(f"calibrate {number}", {})
            runs.append(run)
    weights = stats_store(machine.stats_dir).of_model(model.identity, "weights")
    if weights:
        parts.expect("weights", {})
    if len(runs) < len(requests) or (weights_request(recipe, machine) and not weights):
        return parts.whole
    if measured := sensitivity_request(recipe, machine):
        shares = [corpus.weight for corpus in recipe.plan.corpus_weights]
        ranked_by = [Part(*pair) for pair in zip(runs, shares, strict=bool(runs))]
        curves = yield from stated_whole(sensitivity_run(measured, ranked_by))
        parts.expect("sensitivity", curves.left)
        return parts.whole
    problem = yield from problem_of(request)
    from analysis.calibration.distributed import join

    left = remaining(problem.task, problem.scores(join()), problem.costs).left
    starting = search_parts(problem.costs, section)
    starting.expect("searching", left)
    parts.expect(SEARCH, starting.whole.total if any(left.values()) else {})
    return parts.whole


def searching_costs(recipe: Recipe, machine: Machine, model: MoEModel) -> Costs:
    """What the search of a recipe costs, without the statistics that it reads."""
    if (section := recipe.search) is None:
        return {}
    seq_len = seq_len_of(section.corpus, recipe.seq_len)
    tokens = section.samples * within_context(model, seq_len, recipe.seq_len)
    by_layers = machine.stream_layers
    costs = RunCosts.of(model, tokens, tokens, [section.fitness], by_layers=by_layers)
    return search_parts(costs, section).whole.total


def statistics_costs(recipe: Recipe, machine: Machine, model: MoEModel) -> dict[str, Costs]:
    """What a recipe measures before it plans: calibrations by number, weights, sensitivity."""
    costs, parts = layer_costs(model), dict[str, Costs]()
    for number, calibration in enumerate(calibrate_requests(recipe, machine)):
        running = costs.running(calibration.sampling().tokens, *range(model.depth))
        loading = costs.reading(*costs.num_bytes)
        parts[f"calibrate {number}"] = {"read": loading, "multiply": running}
    if weights_request(recipe, machine):
        parts["weights"] = weights_costs(model)
    if measured := sensitivity_request(recipe, machine):
        tokens = expected_tokens(measured, model)
        parts["sensitivity"], again = sensitivity_costs(measured, model, tokens)
        if rounds := recipe.sensitivity and recipe.sensitivity.refine:
            parts["refinement"] = scaled(again, rounds)
    return parts


def problem_of(request: SearchRequest, parts: Parts | None = None) -> "Steps[Problem]":
    """Everything that the search needs; refuses what is impossible before any long work.

    `parts` are those of the whole command.
    """
    recipe, machine = request.parsed(), request.machine
    section = _section(recipe)
    model = load_model_index(recipe.model, revision=recipe.revision)
    if machine.stream_layers:
        check_streamable(model)
    check_spec(recipe.plan, model)
    store = stats_store(machine.stats_dir)
    check_measured(recipe, model, store)
    with together():
        yield Progress("reading the search samples", 0, 0)
        # Documents that no known calibration of the model has read.
        drawn_samples = draw(
            section.corpus,
            open_checked(
                section.corpus,
                store,
                allowed=recipe.allow_test_set,
                skips=recipe.skip_bad_rows,
            ),
            [run.manifest for run in store.of_model(model.identity, "routed")],
            SampleSettings(
                section.samples,
                within_context(model, seq_len_of(section.corpus, recipe.seq_len), recipe.seq_len),
                template_args=recipe.template_args,
                windows_per_document=recipe.windows_per_document,
            ),
            tokenizer_loader(model, trusted=machine.trust_remote_code),
        )
    check_drawn(model, drawn_samples)
    yield from say_drawn(drawn_samples)
    whole, runs = parts or Parts({}), []
    requests = calibrate_requests(recipe, machine)
    weighted = zip(requests, recipe.plan.corpus_weights, strict=bool(requests))
    for number, (calibration, corpus) in enumerate(weighted):
        run = yield from whole.run(f"calibrate {number}", calibrate_run(calibration))
        runs.append(Part(run, corpus.weight))
    if weights := weights_request(recipe, machine):
        yield from whole.run("weights", weights_run(weights))
    planned = spec_request(recipe, machine)
    spec = planned.plan
    study = Study.of(planned, model, store)
    ranking = yield from study.rank(spec, runs)
    if measured := sensitivity_request(recipe, machine):
        yield from whole.run("sensitivity", sensitivity_run(measured, runs))
        ranking = study.measured(ranking)
        if recipe.sensitivity and recipe.sensitivity.refine:
            again = _refinement_request(measured, recipe, ranking)
            yield from whole.run("refinement", sensitivity_run(again, runs))
    ranking = study.measured(ranking)
    if section.start == MEASURED:
        sensitivity = sensitivity_on(section.corpus, ranking, spec, store)
        ranking = replace(ranking, sensitivity=sensitivity)
    problem = _make_problem(section, recipe, machine, ranking, drawn_samples)
    yield from _say_left_out(problem.task)
    return problem


def _say_left_out(task: Task) -> Steps[None]:
    """Name the allocations to start from for which a population has no room."""
    if left := starts_without_room(task.space, task.settings, task.seeds):
        size = task.settings.population
        note = f"a population of {size} does not start from {', '.join(left)}"
        yield Progress("searching", 0, 0, note=f"{note}; {size + len(left)} would")


def _section(recipe: Recipe) -> SearchSection:
    if recipe.search is None:
        raise PlanError("The recipe has no key search; it needs at least search: {corpus: C}.")
    return recipe.search


def check_measured(recipe: Recipe, model: MoEModel, store: StatsStore) -> None:
    """Refuse, before any work, a recipe that reads a sensitivity that nothing measures."""
    is_read = recipe.plan.spread.is_measured or (recipe.search and recipe.search.start == MEASURED)
    if not is_read or recipe.sensitivity:
        return
    if not SensitivityStore(store.directories).records(model.identity):
        raise PlanError(
            f"The recipe reads the sensitivity of layers ({MEASURED}), and none of {model.name} "
            "was measured; add sensitivity: {corpus: CORPUS}."
        )


def _refinement_request(
    measured: SensitivityRequest, recipe: Recipe, ranking: Ranking
) -> SensitivityRequest:
    """The refinement of a plan that removes as many experts as the search does."""
    spec = ranking.spec
    evidence = ranking.evidence_for(spec)
    budget = budget_of(spec, units_of(ranking, spec), ranking.model, evidence)
    rounds = recipe.sensitivity.refine if recipe.sensitivity else 0
    return measured.into(SensitivityRequest, remove=budget.total, refine=rounds)


def _make_problem(
    section: SearchSection,
    recipe: Recipe,
    machine: Machine,
    ranking: Ranking,
    drawn_samples: DrawnSamples,
) -> "Problem":
    from pruning.search.sitting import Problem

    sequences = drawn_samples.sequences
    spec, schedule = ranking.spec, ranking.spec.spread.schedule
    evidence = ranking.evidence_for(spec)
    units = units_of(ranking, spec)
    budget = budget_of(spec, units, ranking.model, evidence)
    scheduled = allocate(schedule, units, budget, evidence)
    space = space_of(units, budget, scheduled)
    # What candidates respect: locked layers keep what the schedule gives them.
    counted = spec.changed(lock=(), set=dict(space.units.limits.fixed))
    provenance = ranking.provenance(counted, units, budget)
    parameters = schedule_parameters(
        section.to_dict(), section.fitness, sequences.corpus, len(sequences.rows)
    )
    seeds = seeds_of(space, budget, schedule, scheduled)
    if section.start == MEASURED:
        seeds |= ranking.curves_for(spec).starts(space.units, space.total)
    return Problem(
        model=ranking.model,
        ranking=ranking.table,
        constraints=space.units.limits,
        provenance=replace(provenance, schedule=SEARCH, schedule_parameters=parameters),
        task=Task(space, seeds, section),
        search_samples=drawn_samples,
        measure=section.fitness,
        running=run_settings(
            recipe.calibrate,
            sequences.longest,
            seed=section.seed,
            dtype=recipe.dtype,
            device=machine.device or "auto",
            batch_size=machine.batch_size or 8,
            trust_remote_code=machine.trust_remote_code,
            placement=search_placement(recipe, machine),
        ),
        recipe=recipe,
        table=Measurements(stats_store(machine.stats_dir).directories),
    )
