"""Commands that do what a recipe asks for: prune, search."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from analysis.errors import Checks, PlanError
from analysis.machine.devices import check_device
from analysis.model.moe_model import MoEModel
from analysis.model.opening import load_model_index
from analysis.stats.manifest import Part, Run
from analysis.stats.store import stats_store
from app.cli import options
from app.cli.action import perform, show
from app.cli.derive import command
from app.cli.files import write_result
from app.cli.options import Recipe as RecipeFile
from app.cli.say import say_notes, say_plan
from app.console import Course, finish, follow, out
from pruning.actions.action import Call
from pruning.actions.evaluation_tables import evaluation_tables
from pruning.actions.export import ACTION as EXPORT
from pruning.actions.search import ACTION as SEARCHING
from pruning.plan.bits import bits_words
from pruning.plan.copies import plan_for_copy
from pruning.plan.kept import check_cuttable
from pruning.plan.plan import PruningPlan, keep_all
from pruning.plan.plan_file import load_plan
from pruning.plan.super_experts import super_note
from pruning.planning.files import check_spec
from pruning.planning.make import plan_rounding
from pruning.records.evaluation import result_json
from pruning.requests.following import commands_after_plan, export_command
from pruning.requests.machine import Machine
from pruning.requests.recipe import Recipe
from pruning.requests.recipe_file import load_recipe
from pruning.requests.recipe_steps import (
    calibrate_requests,
    evaluate_request,
    export_request,
    machine_of,
    other_corpora,
    repair_request,
    search_of_file,
    sensitivity_request,
    spec_request,
    weights_request,
)
from pruning.search.store import PLAN_NAME, REPAIRED_NAME, SEARCH
from pruning.serving.gguf import find_converter
from pruning.spec.base import option_words
from pruning.spec.options import SearchFolder
from pruning.study import Study
from pruning.surgery.dequantising import plan_dequantisation
from pruning.surgery.export import check_place
from pruning.surgery.manifest import MANIFEST_NAME, read_manifest
from pruning.tasks.calibration import calibrate_run, check_corpora, weights_run
from pruning.tasks.evaluation import evaluate_run
from pruning.tasks.export import is_finished_export
from pruning.tasks.probing import is_unknown, probing
from pruning.tasks.recipe_costs import recipe_parts
from pruning.tasks.repair import repair_run
from pruning.tasks.search import check_measured, search_folder
from pruning.tasks.sensitivity import sensitivity_run


@dataclass(frozen=True, slots=True)
class _Work:
    """A recipe at work."""

    recipe: Recipe
    machine: Machine
    model: MoEModel
    path: Path  # of the recipe; results lie beside it
    course: Course


@command(Machine)
def prune(machine: Machine, *, path: RecipeFile) -> None:
    """Calibrate, plan or search, evaluate, export as a recipe says; rerun to resume.

    Example: moeprune prune recipe.yaml
    """
    recipe = load_recipe(path)
    model = load_model_index(recipe.model, revision=recipe.revision)
    pruned = model
    if recipe.export and recipe.export.model:
        pruned = load_model_index(recipe.export.model, revision=recipe.export.revision)
    _check(recipe, machine, model, pruned)
    out.print(f"{path}: recipe {recipe.digest[:8]} for {model.name}")
    parts = recipe_parts(recipe, machine, model, pruned)
    if is_unknown(parts.whole):
        follow(probing(parts.whole, model, recipe.dtype, machine.device or "auto"))
    course = Course(parts)
    work = _Work(recipe, machine, model, path, course)
    plan, notes = _make(work)
    plans = {path.with_name(f"{path.stem}.plan.json"): plan}
    if repair := repair_request(recipe, machine, plan):
        record = course.follow("repair", repair_run(repair))
        out.print(f"repair: {record.record_id}")
        repaired = replace(plan, repair=record.reference)
        plans[path.with_name(f"{path.stem}.repaired.json")] = repaired
    *_, (place, last) = plans.items()
    export_plan = last if pruned is model else plan_for_copy(last, model, pruned)
    request = export_request(recipe, machine, path.read_text(encoding="utf-8-sig"), export_plan)
    if request:
        # Refuses another export before anything is written: an older recipe's files stay with it.
        is_finished_export(request, pruned)
    for file, made in plans.items():
        _save(made, file, model)
    say_notes(notes)
    _evaluate(work, plans)
    if request is None:
        words = ("--plan", str(place), *option_words(recipe, only=("revision",)))
        finish("export: the recipe asks for none", {}, export_command(recipe.model, *words))
    else:
        perform(EXPORT, Call(request), run=partial(course.follow, "export"))
    course.end()


def _make(work: _Work) -> tuple[PruningPlan, tuple[str, ...]]:
    """The plan of a recipe, after all that it measures first, and notes on the plan."""
    recipe, machine, model, course = work.recipe, work.machine, work.model, work.course
    parts = _calibrate_corpora(recipe, machine, course)
    if recipe.search:  # an unfinished search is resumed
        folder = search_folder(work.path)
        call = Call(search_of_file(work.path, folder, machine))
        perform(SEARCHING, call, run=partial(course.follow, SEARCH))
        plan = load_plan(folder / PLAN_NAME, model=model)
        return plan, _search_notes(plan, model, machine)
    if measured := sensitivity_request(recipe, machine):
        for corpus in course.follow("sensitivity", sensitivity_run(measured, parts)).corpora:
            out.print(f"sensitivity {corpus.record.corpus['name']}: {corpus.record.record_id}")
    asked = spec_request(recipe, machine)
    planning = Study.of(asked, model, stats_store(machine.stats_dir)).make(asked.plan, parts)
    plan, _ = course.follow("plan", planning)
    return plan, plan.notes


def _evaluate(work: _Work, plans: Mapping[Path, PruningPlan]) -> None:
    """Evaluate plans if the recipe asks for it; the result lies beside the recipe."""
    evaluation = evaluate_request(work.recipe, work.machine, tuple(plans.values()))
    if evaluation is None:
        return
    records = work.course.follow("evaluate", evaluate_run(evaluation))
    names = [f"{plan.name}{bits_words(bit)}" for plan in plans for bit in evaluation.bits]
    show(evaluation_tables(records, names))
    result = work.path.with_name(f"{work.path.stem}.result.json")
    write_result(result, result_json(records))
    finish(f"evaluate: {result}", {"evaluation": str(result)})


def _search_notes(plan: PruningPlan, model: MoEModel, machine: Machine) -> tuple[str, ...]:
    """Notes on the plan of a search."""
    store = stats_store(machine.stats_dir)
    notes = (plan_rounding(plan, model), super_note(plan, model, store))
    return tuple(filter(None, notes))


def _save(plan: PruningPlan, place: Path, model: MoEModel) -> None:
    """Write a plan of a recipe, unless it is there."""
    if place.is_file() and place.read_bytes() == plan.to_json().encode():
        out.print(f"plan: {place} is the same, skipped")
    else:
        plan.save(place)
        say_plan(model, plan, place)


def _check(recipe: Recipe, machine: Machine, model: MoEModel, pruned: MoEModel) -> None:
    """Refuse what cannot be done before any work, all of it at once."""
    folder = recipe.export.out if recipe.export else None
    checks: list[Callable[[], object]] = [
        lambda: check_device(machine_of(recipe, machine).device or ""),
        lambda: check_spec(recipe.plan, model),
        lambda: follow(check_corpora(calibrate_requests(recipe, machine))),
        lambda: follow(check_corpora(other_corpora(recipe, machine))),
        lambda: evaluate_request(recipe, machine),
        lambda: check_measured(recipe, model, stats_store(machine.stats_dir)),
    ]
    if pruned is not model:
        checks.append(lambda: plan_for_copy(keep_all(model), model, pruned))
        if recipe.plan.by_neuron:
            checks.append(lambda: check_cuttable(pruned))
    if recipe.export:
        is_asked_for, is_repaired = recipe.export.dequantise, recipe.repair is not None
        checks.append(
            lambda: plan_dequantisation(pruned, is_asked_for=is_asked_for, is_repaired=is_repaired)
        )
        checks.append(lambda: export_request(recipe, machine, "", keep_all(pruned)))
        if recipe.export.gguf:
            checks.append(lambda: find_converter(None))
    if folder:
        checks.append(lambda: _check_folder(folder, pruned))
    together = Checks()
    for check in checks:
        together.run(check)
    together.finish("The recipe asks for {count} things that cannot be done")


def _check_folder(folder: Path, pruned: MoEModel) -> None:
    """Refuse a folder that cannot take the export; one of the plan, which may be there, can."""
    if (folder / MANIFEST_NAME).is_file():
        source = read_manifest(folder).source
        if source.identity != pruned.identity:
            raise PlanError(
                f"{folder} holds an export of {source.name}, not of {pruned.name}; remove it, or "
                "give export another folder."
            )
        return  # the plan is compared when it is known
    check_place(folder, pruned.checkpoint.path)


def _calibrate_corpora(recipe: Recipe, machine: Machine, course: Course) -> list[Part]:
    """The run of each corpus, and its weight; the weights are measured too where they are read."""
    earlier_ids = {run.manifest.run_id for run in stats_store(machine.stats_dir).runs()}

    def say(step: str, run: Run) -> Run:
        name = run.manifest.run_id
        out.print(f"{step}: {name}{' is in the cache, skipped' if name in earlier_ids else ''}")
        return run

    requests, corpora = calibrate_requests(recipe, machine), recipe.plan.corpus_weights
    if not requests:
        out.print("calibrate: nothing in the recipe reads a corpus, skipped")
    parts = []
    weighted = zip(requests, corpora, strict=bool(requests))
    for number, (request, corpus) in enumerate(weighted):
        run = course.follow(f"calibrate {number}", calibrate_run(request))
        parts.append(Part(say(f"calibrate {request.corpus}", run), corpus.weight))
    if weights := weights_request(recipe, machine):
        say("weights", course.follow("weights", weights_run(weights)))
    return parts


@command(Machine)
def search(
    request: Machine,
    *,
    path: RecipeFile,
    out_dir: SearchFolder | None = None,
    dry_run: options.Cost = False,
) -> None:
    """The action on the recipe of a file, and what the recipe says besides on its plan."""
    recipe = load_recipe(path)
    if recipe.search is None:
        raise PlanError(
            f"The recipe {path} has no key search; it needs at least search: {{corpus: CORPUS}}."
        )
    folder = out_dir or search_folder(path)
    model = load_model_index(recipe.model, revision=recipe.revision)
    _check(recipe, request, model, model)
    call = Call(search_of_file(path, folder, request))
    perform(SEARCHING, call, dry_run=dry_run)
    if dry_run:
        return
    plan = load_plan(folder / PLAN_NAME, model=model)
    after = commands_after_plan(spec_request(recipe, request), model, folder / PLAN_NAME, plan)
    say_notes(_search_notes(plan, model, request))
    if repair := repair_request(recipe, request, plan):
        record = follow(repair_run(repair))
        _save(replace(plan, repair=record.reference), folder / REPAIRED_NAME, model)
    say_plan(model, plan, folder / PLAN_NAME, *after)
