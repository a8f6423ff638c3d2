"""The command that makes a plan: plan."""

from pathlib import Path
from typing import Annotated

import typer

from analysis.model import MoEModel
from app.commands import options
from app.commands.atoms import write_atomic_plan
from app.commands.plans import show_summary
from app.commands.rank import say_runs, selection_for
from app.console import out
from pruning.plan import EXPERT_GRANULARITY, PruningPlan, save_plan
from pruning.plan_summary import plan_summary
from pruning.planning.make import make_plan
from pruning.requests.base import validated
from pruning.requests.plan import PlanRequest
from pruning.schedules import SCHEDULES
from pruning.sizes import format_bytes, size_report

_KNOWN = ", ".join(SCHEDULES)
_Texts = list[str] | None


def plan(
    model: options.Model,
    criterion: options.CriterionName,
    sparsity: Annotated[
        str | None, typer.Option(help="Budget: fraction of experts removed, 0.5 or 50%.")
    ] = None,
    remove: Annotated[
        int | None, typer.Option(help="Budget: number of experts removed from all layers.")
    ] = None,
    target_gib: Annotated[
        str | None, typer.Option(help="Budget: the weights take at most this many GiB on disk.")
    ] = None,
    target_dtype: Annotated[
        str, typer.Option(help="Count the target in the checkpoint's own types, or in bfloat16.")
    ] = "own",
    out_file: options.Out = Path("plan.json"),
    corpus: options.Corpora = None,
    run: options.Runs = None,
    gate: options.GateOption = options.DEFAULT_GATE,
    schedule: Annotated[
        str | None, typer.Option(help=f"How the budget is spread: {_KNOWN}.")
    ] = None,
    schedule_file: Annotated[
        Path | None,
        typer.Option(help="CSV, JSON or YAML: layer -> experts kept or removed; a search result."),
    ] = None,
    multiple_of: Annotated[int, typer.Option(help="Layers keep a multiple of this many.")] = 1,
    floor: Annotated[int, typer.Option(help="Layers keep at least this many.")] = 0,
    protect: Annotated[
        _Texts, typer.Option(help="Layers that lose nothing: 0,5-7; repeatable.")
    ] = None,
    pin: Annotated[
        _Texts, typer.Option(help="Experts that stay: LAYER:EXPERTS, 3:5,7-9; repeatable.")
    ] = None,
    drop: Annotated[
        _Texts, typer.Option(help="Experts that go: LAYER:EXPERTS; repeatable.")
    ] = None,
    layer_set: Annotated[
        _Texts,
        typer.Option(
            "--set", "--layer-set", help="Layers that keep a number: LAYER=KEPT; repeatable."
        ),
    ] = None,
    lock: Annotated[
        _Texts, typer.Option(help="Layers that keep what they had before --set; repeatable.")
    ] = None,
    granularity: Annotated[
        str,
        typer.Option(
            help="What is removed: whole experts (expert), or neurons (atomic); then budgets count "
            "neurons, and each expert keeps the multiple and the floor."
        ),
    ] = EXPERT_GRANULARITY,
    atom_scope: Annotated[
        str | None,
        typer.Option(
            help="Neurons compete within an expert (the default), a layer, or all layers (global)."
        ),
    ] = None,
    kept_atoms: Annotated[
        Path | None, typer.Option(help="JSON: layer -> expert -> ids of the neurons that stay.")
    ] = None,
    params_share: Annotated[
        str | None,
        typer.Option(
            help="Budget of neurons: the least that takes this fraction of all the model's "
            "parameters, 0.2 or 20%; of experts only neurons that stay are counted, no zeros."
        ),
    ] = None,
    width_mode: Annotated[
        str | None,
        typer.Option(
            help="What a target size of neurons counts: uniform (the default), per-layer, ragged."
        ),
    ] = None,
    width_multiple_of: Annotated[
        int | None, typer.Option(help="Widths of an export are rounded up to a multiple of this.")
    ] = None,
    revision: options.Revision = None,
    stats_dir: options.StatsDir = None,
) -> None:
    """Choose the experts that stay, or the neurons in them; writes plan.json."""
    given = {
        "model": model,
        "granularity": granularity,
        "criterion": criterion,
        "sparsity": sparsity,
        "remove": remove,
        "target_gib": target_gib,
        "target_dtype": target_dtype,
        "corpora": tuple(corpus or ()),
        "runs": tuple(run or ()),
        "gate": gate,
        "schedule": schedule or ("file" if schedule_file else "uniform"),
        "schedule_file": schedule_file,
        "multiple_of": multiple_of,
        "floor": floor,
        "protect": tuple(protect or ()),
        "pin": tuple(pin or ()),
        "drop": tuple(drop or ()),
        "layer_set": tuple(layer_set or ()),
        "lock": tuple(lock or ()),
        "atom_scope": atom_scope,
        "kept_atoms": kept_atoms,
        "params_share": params_share,
        "width_mode": width_mode,
        "width_multiple_of": width_multiple_of,
        "revision": revision,
        "stats_dir": stats_dir,
    }
    if granularity == EXPERT_GRANULARITY:
        _check_budget([sparsity, remove, target_gib, params_share], schedule_file)
    values = {name: value for name, value in given.items() if value is not None}
    request: PlanRequest = validated(PlanRequest, values)
    write = write_atomic_plan if request.is_atomic else _write_expert_plan
    write(request, out_file)


def _write_expert_plan(request: PlanRequest, path: Path) -> None:
    selection = selection_for(request)
    made = make_plan(selection, request)
    save_plan(made.plan, path)
    say_plan(selection.model, made.plan, path)
    for note in made.notes:
        out.print(note, markup=False)
    say_runs(selection)


def _check_budget(budgets: list[object], schedule_file: Path | None) -> None:
    given = sum(budget is not None for budget in budgets)
    if given > 1 or (given == 0 and schedule_file is None):
        raise typer.BadParameter(
            "give one budget: --sparsity, --remove or --target-gib (a --schedule-file has its own)"
        )


def say_plan(model: MoEModel, made: PruningPlan, path: Path) -> None:
    """Print what a plan keeps, in one line; layer by layer where layers differ."""
    report, summary = size_report(model, made), plan_summary(made, model)
    out.print(
        f"{path}: keeps {summary['kept'].sum()} of {model.num_experts} experts, "
        f"{format_bytes(report.bytes_before)} -> {format_bytes(report.bytes_after)}, "
        f"digest {made.digest[:8]}",
        markup=False,
    )
    differs = bool((summary["kept"] != summary["kept"].iloc[0]).any())
    if differs or made.provenance.constraints:
        show_summary(summary, "")
