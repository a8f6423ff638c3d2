"""The command that does all that a recipe asks for: run."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from analysis.blend import Part
from analysis.errors import ExportError
from analysis.model import MoEModel, load_model_index
from analysis.store import Run
from app.calibration_tasks import calibrate_run, weights_run
from app.commands import options
from app.commands.console import follow, out
from app.commands.plan import say_plan
from app.commands.search import run_search_of, say_search, search_folder
from app.commands.ship import report_checks
from app.recipe_requests import (
    Machine,
    calibrate_requests,
    check_supported,
    export_request,
    select_request,
    weights_request,
)
from app.selection import check_request, selected_from
from app.settings import stats_store
from app.task_requests import ExportRequest
from app.tasks import export_run, verify_result
from pruning.plan import PruningPlan, load_plan, save_plan
from pruning.recipe import Recipe
from pruning.recipe_file import load_recipe
from pruning.search.result import PLAN_NAME
from pruning.surgery.manifest import MANIFEST_NAME, read_manifest


def run(
    path: Annotated[Path, typer.Argument(metavar="RECIPE", help="recipe.yaml.")],
    device: Annotated[str, typer.Option(help="Device: auto, cpu, cuda ...")] = "auto",
    batch_size: Annotated[int, typer.Option(help="Sequences in one forward.")] = 8,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run code that comes with the checkpoint.")
    ] = False,
    stats_dir: options.StatsDir = None,
) -> None:
    """Calibrate, plan or search, export as a recipe says; what is finished is not done again."""
    recipe = load_recipe(path)
    check_supported(recipe)
    machine = Machine(stats_dir, device, batch_size, trust_remote_code)
    asked = select_request(recipe, machine)
    model = load_model_index(recipe.model, revision=recipe.revision)
    check_request(asked, model)
    _check_place(recipe)
    out.print(f"{path}: recipe {recipe.digest[:8]} for {model.name}", markup=False)
    parts = _calibrated(recipe, machine)
    _weighed(recipe, machine)
    if recipe.search is None:
        made = selected_from(asked, model, stats_store(stats_dir), parts).decision()
        plan, notes = made.plan, made.notes
    else:
        plan, notes = _searched(path, machine, model), ()
    _planned(plan, notes, model, path.with_name(f"{path.stem}.plan.json"))
    request = export_request(recipe, path.read_text(encoding="utf-8-sig"), plan)
    if request is None:
        out.print("export: the recipe asks for none")
    else:
        _exported(request, plan, model)


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
    say_search(run_search_of(path, folder, machine), folder)
    return load_plan(folder / PLAN_NAME, model=model)


def _planned(plan: PruningPlan, notes: Sequence[str], model: MoEModel, path: Path) -> None:
    if path.is_file() and path.read_bytes() == plan.to_json().encode():
        out.print(f"plan: {path} is the same, skipped", markup=False)
    else:
        save_plan(plan, path)
        say_plan(model, plan, path)
    for note in notes:
        out.print(note, markup=False)


def _exported(request: ExportRequest, plan: PruningPlan, model: MoEModel) -> None:
    if _is_finished(request.out, plan):
        out.print(f"export: {request.out} is finished, skipped", markup=False)
        if request.verify:
            # Whether an earlier run came to its end is not known, so the proof is made again.
            report_checks(request.out, follow(verify_result(request.out, None, model)))
        return
    result = follow(export_run(request))
    out.print(f"export: {request.out}, plan {result['plan_digest'][:8]}", markup=False)
    if request.verify:
        report_checks(request.out, result["verify"])


def _check_place(recipe: Recipe) -> None:
    """Refuse a folder of something else before the work, and not after it."""
    folder = recipe.export.out if recipe.export else None
    if folder is None or (folder / MANIFEST_NAME).is_file():
        return
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        what = "a file" if folder.is_file() else "not empty"
        raise ExportError(f"{folder} is {what}; give a new or empty directory for the export.")


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
