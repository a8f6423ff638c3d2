"""Commands that write and prove checkpoints: export, verify."""

from pathlib import Path
from typing import Annotated

from pydantic import Field

from analysis.model import load_model_index
from analysis.stats.store import stats_store
from app.cli import options
from app.cli.derive import command
from app.cli.say import report_checks, show_width_options
from app.console import follow, out
from pruning.measured_routing import plan_routing
from pruning.plan import ATOMIC_GRANULARITY, load_plan
from pruning.requests.base import Option
from pruning.requests.export import ExportRequest, PrunedRequest
from pruning.requests.options import StatsDir, Text
from pruning.sizes import format_bytes, size_report
from pruning.tasks.export import export_run, verify_result

_SOURCE = Option(
    "The model that it was made from: every byte is compared, then logits.", ("--source",)
)


@command(PrunedRequest)
def export(
    request: PrunedRequest,
    *,
    plan: Annotated[options.Plan, Option("plan.json from `moeprune plan`.")],
    dry_run: Annotated[
        options.DryRun, Option("Show the sizes, by width mode; write nothing.")
    ] = False,
    stats_dir: StatsDir | None = None,
) -> None:
    """Write the pruned checkpoint; the model is never loaded.

    FLOPs of neurons follow how often the plan's own runs chose each expert, where they are known.
    """
    model = load_model_index(request.model, revision=request.revision)
    chosen = load_plan(plan, model=model)
    is_atomic = chosen.granularity == ATOMIC_GRANULARITY
    if is_atomic:
        routing = plan_routing(chosen, model, stats_store(stats_dir))
        show_width_options(model, chosen, request.width_multiple_of, routing)
    if dry_run:
        if not is_atomic:
            report = size_report(model, chosen)
            before, after = format_bytes(report.bytes_before), format_bytes(report.bytes_after)
            out.print(f"{before} -> {after}; nothing was written.")
        return
    mode = request.width_mode or ("uniform" if is_atomic else None)
    result = follow(export_run(request.into(ExportRequest, plan=chosen.to_dict(), width_mode=mode)))
    out.print(f"{request.out}: plan {result['plan_digest'][:8]}")
    if result["heads"]:
        out.print(f"Prediction heads (MTP): {result['heads']}")
    if "verify" in result:
        report_checks(request.out, result["verify"])


@command()
def verify(
    *,
    out_dir: Annotated[Path, Option("Folder of an export.", place="OUT")],
    level: Annotated[
        str | None, Option("bytes, load or logits; default: the highest that fits in memory.")
    ] = None,
    source: Annotated[Text | None, _SOURCE] = None,
    tokens: Annotated[int, Field(ge=1), Option("Random tokens to run.")] = 128,
) -> None:
    """Check an exported checkpoint: bytes and hashes, loading, equality with the masked source."""
    described = load_model_index(source) if source else None
    report_checks(out_dir, follow(verify_result(out_dir, level, described, tokens)))
