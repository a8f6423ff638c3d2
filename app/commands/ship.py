"""Commands that write and prove checkpoints: export, verify."""

from pathlib import Path
from typing import Annotated, Any

import typer

from analysis.errors import ExportError
from analysis.model import MoEModel, load_model_index
from app.commands import options
from app.commands.widths import plan_routing, show_width_options
from app.console import follow, out, show_table
from app.settings import stats_store
from app.tasks.export import export_run, verify_result
from pruning.atoms.widths import DEFAULT_MULTIPLE
from pruning.plan import ATOMIC_GRANULARITY, PruningPlan, load_plan
from pruning.requests.base import ExportRequest, validated
from pruning.sizes import format_bytes, size_report

Level = Annotated[
    str | None,
    typer.Option(help="bytes, load or logits; default: the highest that fits in memory."),
]


def export(
    model: options.Model,
    out_dir: Annotated[Path, typer.Argument(metavar="OUT", help="New folder to write.")],
    plan: Annotated[Path, typer.Option(help="plan.json from `moeprune plan`.")],
    mtp: Annotated[
        str | None,
        typer.Option(
            help="Prediction heads with experts: drop, keep, or prune by their weights. "
            "Default: drop where the number of experts changes."
        ),
    ] = None,
    hash_source: Annotated[
        bool, typer.Option("--hash-source", help="Record the SHA-256 of the whole source.")
    ] = False,
    max_shard_size: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Put the tensors into shards anew, none larger than this: 5GB, 500MB, 1.5GiB. "
            "Default: leave them in the shards that they were in.",
        ),
    ] = None,
    keep_list: Annotated[
        bool,
        typer.Option(
            "--keep-list", help="Also write kept_experts.json: layer, and the ids that stayed."
        ),
    ] = False,
    verify: Annotated[bool, typer.Option(help="Verify the result at once.")] = False,
    width_mode: Annotated[
        str | None,
        typer.Option(
            help="For plans that remove neurons: uniform (every reader), per-layer, or ragged. "
            "Default: uniform."
        ),
    ] = None,
    width_multiple_of: Annotated[
        int, typer.Option(help="Widths are rounded up to a multiple of this.")
    ] = DEFAULT_MULTIPLE,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the sizes, by width mode; write nothing.")
    ] = False,
    revision: options.Revision = None,
    stats_dir: options.StatsDir = None,
) -> None:
    """Write the pruned checkpoint; the model is never loaded.

    FLOPs of neurons follow how often the plan's own runs chose each expert, where they are known.
    """
    described = load_model_index(model, revision=revision)
    chosen = load_plan(plan, model=described)
    is_atomic = chosen.granularity == ATOMIC_GRANULARITY
    if is_atomic:
        routing = plan_routing(chosen, described, stats_store(stats_dir))
        show_width_options(described, chosen, width_multiple_of, routing)
    if dry_run:
        if not is_atomic:
            say_sizes(described, chosen)
        return
    request: ExportRequest = validated(
        ExportRequest,
        {
            "model": model,
            "plan": chosen.to_dict(),
            "out": out_dir,
            "mtp": mtp,
            "hash_source": hash_source,
            "max_shard_size": max_shard_size,
            "keep_list": keep_list,
            "verify": verify,
            "revision": revision,
            "width_mode": width_mode or ("uniform" if is_atomic else None),
            "width_multiple_of": width_multiple_of,
        },
    )
    result = follow(export_run(request))
    out.print(f"{out_dir}: plan {result['plan_digest'][:8]}", markup=False)
    if result["heads"]:
        out.print(f"Prediction heads (MTP): {result['heads']}", markup=False)
    if verify:
        report_checks(out_dir, result["verify"])


def say_sizes(model: MoEModel, plan: PruningPlan) -> None:
    """Print what an export of a plan of whole experts would take on disk, in one line."""
    report = size_report(model, plan)
    before, after = format_bytes(report.bytes_before), format_bytes(report.bytes_after)
    out.print(f"{before} -> {after}; nothing was written.", markup=False)


def verify(
    out_dir: Annotated[Path, typer.Argument(metavar="OUT", help="Folder of an export.")],
    level: Level = None,
    source: Annotated[
        str | None,
        typer.Option(help="The model that it was made from: every byte is compared, then logits."),
    ] = None,
    tokens: Annotated[int, typer.Option(min=1, help="Random tokens to run.")] = 128,
) -> None:
    """Check an exported checkpoint: bytes and hashes, loading, equality with the masked source."""
    described = load_model_index(source) if source else None
    report_checks(out_dir, follow(verify_result(out_dir, level, described, tokens)))


def report_checks(out_dir: Path, report: dict[str, Any]) -> None:
    """Print the checks of a verification.

    Raises:
        ExportError: one failed.
    """
    rows = [(check["name"], check["ok"], check["detail"]) for check in report["checks"]]
    show_table(f"{out_dir}: level {report['level']}", ("check", "ok", "detail"), rows)
    out.print(report["reason"], markup=False)
    failed = [check for check in report["checks"] if not check["ok"]]
    if failed:
        raise ExportError(f"{out_dir} fails: {failed[0]['name']}: {failed[0]['detail']}")
