"""The command that does all that a recipe asks for: run."""

from collections.abc import Callable, Sequence
from pathlib import Path

from analysis.errors import ExportError, PlanError, UserError
from analysis.model import MoEModel, load_model_index
from analysis.stats.blend import Part
from analysis.stats.store import Run, stats_store
from app.cli.derive import command
from app.cli.files import write_result
from app.cli.options import Recipe as RecipeFile
from app.cli.say import report_checks, say_notes, say_plan, say_search, show_records
from app.console import follow, out
from pruning.evaluate.record import results_of
from pruning.plan import PruningPlan, load_plan
from pruning.planning.make import check_request, plan_from_stats
from pruning.recipe import Recipe
from pruning.recipe_file import load_recipe
from pruning.requests.evaluation import EvaluateRequest
from pruning.requests.export import ExportRequest
from pruning.requests.recipe import (
    Machine,
    calibrate_requests,
    evaluate_request,
    export_request,
    other_corpora,
    plan_request,
    weights_request,
)
from pruning.requests.search import search_of_file
from pruning.search.result import PLAN_NAME
from pruning.surgery.export import check_free
from pruning.surgery.manifest import MANIFEST_NAME, read_manifest
from pruning.tasks.calibration import calibrate_run, check_corpora, weights_run
from pruning.tasks.evaluation import evaluate_run
from pruning.tasks.export import export_run, verify_result
from pruning.tasks.search import search_folder, search_run


@command(Machine)
def run(machine: Machine, *, path: RecipeFile) -> None:
    """Calibrate, plan or search, evaluate, export as a recipe says; finished steps are skipped."""
    recipe = load_recipe(path)
    model = load_model_index(recipe.model, revision=recipe.revision)
    _check(recipe, machine, model)
    out.print(f"{path}: recipe {recipe.digest[:8]} for {model.name}", markup=False)
    parts = _calibrated(recipe, machine)
    _weighed(recipe, machine)
    if recipe.search is None:
        plan, notes = _decided(recipe, machine, model, parts)
    else:
        plan, notes = _searched(path, machine, model), ()
    request = export_request(recipe, path.read_text(encoding="utf-8-sig"), plan)
    # Before anything is written: the files of an older recipe stay with its export.
    is_finished = request is not None and _is_finished(request.out, plan)
    _planned(plan, notes, model, path.with_name(f"{path.stem}.plan.json"))
    _evaluated(evaluate_request(recipe, machine, plan), path)
    if request is None:
        out.print("export: the recipe asks for none")
    else:
        _exported(request, model, is_finished=is_finished)


def _check(recipe: Recipe, machine: Machine, model: MoEModel) -> None:
    """Refuse what cannot be done before any work, all of it at once.

    Raises:
        PlanError: one line, or one for each problem.
    """
    checks: tuple[Callable[[], object], ...] = (
        lambda: check_request(plan_request(recipe, machine), model),
        lambda: follow(check_corpora(calibrate_requests(recipe, machine))),
        lambda: follow(check_corpora(other_corpora(recipe))),
        lambda: evaluate_request(recipe, machine),
        lambda: _check_place(recipe, model),
    )
    problems = []
    for check in checks:
        try:
            check()
        except UserError as error:
            problems.append(str(error))
    if len(problems) == 1:
        raise PlanError(problems[0])
    if problems:
        count = f"{len(problems)} things that cannot be done"
        raise PlanError(f"The recipe asks for {count}:", problems)


def _decided(
    recipe: Recipe, machine: Machine, model: MoEModel, parts: Sequence[Part]
) -> tuple[PruningPlan, tuple[str, ...]]:
    """The plan of the budget, and what a person should know of it."""
    asked, store = plan_request(recipe, machine), stats_store(machine.stats_dir)
    made, _ = follow(plan_from_stats(asked, model, store, parts))
    return made.plan, made.notes


def _say_run(step: str, found: Run, known: set[str]) -> None:
    name = found.manifest.run_id
    out.print(f"{step}: {name}{' is in the cache, skipped' if name in known else ''}", markup=False)


def _known_runs(machine: Machine) -> set[str]:
    return {found.manifest.run_id for found in stats_store(machine.stats_dir).runs()}


def _calibrated(recipe: Recipe, machine: Machine) -> list[Part]:
    """The run of each corpus, and its weight."""
    requests, known = calibrate_requests(recipe, machine), _known_runs(machine)
    if not requests:
        out.print("calibrate: nothing in the recipe reads text, skipped")
    parts = []
    for request, corpus in zip(requests, recipe.corpora, strict=bool(requests)):
        found = follow(calibrate_run(request))
        _say_run(f"calibrate {request.corpus}", found, known)
        parts.append(Part(found, corpus.weight))
    return parts


def _weighed(recipe: Recipe, machine: Machine) -> None:
    request, known = weights_request(recipe, machine), _known_runs(machine)
    if request is not None:
        _say_run("weights", follow(weights_run(request)), known)


def _searched(path: Path, machine: Machine, model: MoEModel) -> PruningPlan:
    """The plan of the best candidate; an unfinished search goes on."""
    folder = search_folder(path)
    say_search(follow(search_run(search_of_file(path, folder, machine))), folder)
    return load_plan(folder / PLAN_NAME, model=model)


def _planned(plan: PruningPlan, notes: Sequence[str], model: MoEModel, path: Path) -> None:
    if path.is_file() and path.read_bytes() == plan.to_json().encode():
        out.print(f"plan: {path} is the same, skipped", markup=False)
    else:
        plan.save(path)
        say_plan(model, plan, path)
    say_notes(notes)


def _evaluated(request: EvaluateRequest | None, recipe: Path) -> None:
    """Measure the plan; results that are there already are read and not made again."""
    if request is None:
        return
    path = recipe.with_name(f"{recipe.stem}.result.json")
    records = follow(evaluate_run(request))
    show_records(records, [f"{recipe.stem}.plan.json"] * len(records))
    write_result(path, results_of(records))
    out.print(f"evaluate: {path}", markup=False)


def _exported(request: ExportRequest, model: MoEModel, *, is_finished: bool) -> None:
    if is_finished:
        out.print(f"export: {request.out} is finished, skipped", markup=False)
        if request.verify:
            # Whether an earlier run came to its end is not known, so the proof is made again.
            report_checks(request.out, follow(verify_result(request.out, None, model)))
        return
    result = follow(export_run(request))
    out.print(f"export: {request.out}, plan {result['plan_digest'][:8]}", markup=False)
    if request.verify:
        report_checks(request.out, result["verify"])


def _check_place(recipe: Recipe, model: MoEModel) -> None:
    """Refuse a place where nothing can be exported; an export that is there is looked at later."""
    folder = recipe.export.out if recipe.export else None
    if folder and not (folder / MANIFEST_NAME).is_file():
        check_free(folder, model.checkpoint.path)


def _is_finished(folder: Path, plan: PruningPlan) -> bool:
    """Whether the export of this plan is there.

    Raises:
        ExportError: that of another plan is.
    """
    if not (folder / MANIFEST_NAME).is_file():
        return False
    there = read_manifest(folder).plan
    if there.digest != plan.digest:
        raise ExportError(
            f"{folder} holds an export of another plan ({there.digest[:8]}, the recipe's is "
            f"{plan.digest[:8]}); remove it, or give export another folder."
        )
    return True
