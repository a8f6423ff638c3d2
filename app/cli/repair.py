"""The command that refits what a plan keeps: repair."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

from analysis.model.opening import load_model_index
from app.cli import options
from app.cli.derive import command
from app.cli.files import save_plan
from app.cli.following import evaluate_command
from app.console import finish, follow, note, show_table
from pruning.plan.plan import load_plan
from pruning.plan.sizes import format_bytes
from pruning.planning.searches import duration_text
from pruning.records.repair import RepairRecord
from pruning.requests.repair import RefitRequest, RepairRequest
from pruning.spec.base import Option
from pruning.tasks.repair import estimate_repair_run, repair_run


@command(RefitRequest)
def repair(
    request: RefitRequest,
    *,
    plan: Annotated[options.Plan, Option("plan.json from `moeprune plan`.")],
    out_file: options.Out = Path("repaired.json"),
    dry_run: Annotated[
        options.DryRun, Option("Show tokens, memory and time; run nothing.")
    ] = False,
) -> None:
    """Refit what a plan keeps to take over part of what it removes; writes repaired.json.

    Example: moeprune repair demo --plan plan.json --tokens 4096
    """
    model = load_model_index(request.model, revision=request.revision)
    chosen = load_plan(plan, model=model)
    full_request = request.into(RepairRequest, plan=chosen.to_dict())
    if dry_run:
        _dry_run(full_request, str(plan))
        return
    record = follow(repair_run(full_request))
    _show_layers(record)
    repaired = replace(chosen, repair=record.reference)
    # Whether it may be replaced was checked before the work.
    save_plan(repaired, out_file, force=True)
    fitted = [each for each in record.layers if each.damping is not None]
    names = ", ".join(dict.fromkeys(each.name for each in record.corpora))
    alone = "" if len(record.corpora) > 1 else " alone; name several --corpus to help them all"
    note(f"Fitted on {names}{alone}. On other text it may help less, or harm: evaluate on each.")
    finish(
        f"{out_file}: {len(fitted)} of {len(record.layers)} layers refitted on "
        f"{record.reference.tokens:,} tokens of {names}",
        {"file": str(out_file), "repair": record.record_id, "layers": len(fitted)},
        evaluate_command(request, model, {plan: chosen, out_file: repaired}),
    )


def _dry_run(request: RepairRequest, plan: str) -> None:
    cost = follow(estimate_repair_run(request))
    seconds = (cost.seconds / 2, cost.seconds)
    finish(
        f"{cost.tokens:,} tokens, about {format_bytes(cost.memory_bytes)} of memory, "
        f"{duration_text(max(seconds))} at most; nothing was written",
        {"tokens": cost.tokens, "memory_bytes": cost.memory_bytes, "seconds": cost.seconds},
        request.command((plan,)),
    )


def _show_layers(record: RepairRecord) -> None:
    rows = []
    for each in record.layers:
        error = min(each.held_out.values(), default=None)
        rows.append(
            (
                each.layer,
                "nothing gained" if each.damping is None else f"{each.damping:g}",
                "" if error is None else f"{error:.1%}",
                "" if each.rounding is None else f"{each.rounding:.1e}",
            )
        )
    columns = ("layer", "damping", "squared error left, held out", "by rounding")
    show_table(f"What layers lack after {record.record_id}", columns, rows)
