"""Commands that write and prove checkpoints: export, verify."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from analysis.model.moe_model import MoEModel
from analysis.model.opening import load_model_index
from analysis.stats.store import stats_store
from app.cli import options
from app.cli.derive import command
from app.cli.say import (
    report_checks,
    say_export,
    say_gguf,
    say_recipe,
    show_width_options,
    warn_of_growth,
)
from app.console import finish, follow, note
from pruning.actions.expected import told
from pruning.plan.copies import plan_for_copy
from pruning.plan.plan import NEURON_GRANULARITY, load_plan
from pruning.plan.routing import plan_routing
from pruning.plan.size_words import less_in_words
from pruning.plan.widths import WidthChoice, WidthMode
from pruning.requests.model import ExportRequest
from pruning.spec.base import Option
from pruning.spec.options import StatsDir, StreamLayers, Text
from pruning.surgery.source_checks import left_behind, missing_files
from pruning.tasks import Steps
from pruning.tasks.export import (
    dry_export,
    expected_verify,
    export_run,
    verify_result,
)

_SOURCE = Option(
    "The model that it was made from: every byte is compared, then logits.", ("--source",)
)


@command(ExportRequest)
def export(
    request: ExportRequest,
    *,
    plans: tuple[Path, ...] = (),
    dry_run: Annotated[
        options.DryRun, Option("Show the sizes, by width mode; write nothing.")
    ] = False,
) -> None:
    """After the sizes by width mode: the export of a plan, of MODEL or of what MODEL is a copy of.

    FLOPs of neurons follow how often the plan's own runs chose each expert, where they are known.
    """
    (plan,) = plans
    model = load_model_index(request.model, revision=request.revision)
    if request.plan_model is None:
        chosen = load_plan(plan, model=model)
    else:
        original = load_model_index(request.plan_model, revision=request.plan_model_revision)
        chosen = plan_for_copy(load_plan(plan), original, model)
        note(f"The plan was made for {original.name}; its layers, sizes and routers are equal.")
    by_neuron = chosen.granularity == NEURON_GRANULARITY
    if by_neuron:
        routing = plan_routing(chosen, model, stats_store(request.stats_dir))
        choice = WidthChoice(WidthMode(request.width_mode or "uniform"), request.width_multiple_of)
        show_width_options(model, chosen, choice, routing)
    mode = request.width_mode or ("uniform" if by_neuron else None)
    export_request = request.into(ExportRequest, plan=chosen.to_dict(), width_mode=mode)
    if dry_run:
        prepared, is_there = follow(dry_export(export_request, model))
        before, after = model.checkpoint.nbytes, prepared.tensor_bytes
        warn_of_growth(before, after)
        numbers: dict[str, object] = {"bytes_before": before, "bytes_after": after}
        if prepared.verdict:
            numbers["verdict"] = prepared.verdict.numbers
            note(prepared.verdict.headline)
            for line in prepared.verdict.lines:
                note(line)
        words = "" if by_neuron else f"{less_in_words(before, after)}; "  # a table has its sizes
        words += f"{export_request.out} is finished, " if is_there else ""
        finish(
            f"{words}nothing was written",
            numbers,
            request.command((str(plan),)),
        )
        return
    write_export(export_request, model)


def write_export(
    request: ExportRequest,
    model: MoEModel,
    run: Callable[[Steps[dict[str, Any]]], dict[str, Any]] = follow,
) -> None:
    """Write an export, or leave the one that is there finished, and say so; `run` shows it."""
    for words in (*map("Left out: {}".format, left_behind(model)), *missing_files(model)):
        note(words)
    result = run(export_run(request))
    if not result["skipped"]:
        say_export(model, request.out, result, request.stats_dir)
        say_gguf(request.out, result)
        say_recipe(result)
        return
    finish(f"export: {request.out} is finished, skipped", result)
    if "verify" in result:
        report_checks(request.out, result["verify"])
    say_gguf(request.out, result)
    say_recipe(result)


@command()
def verify(
    *,
    out_dir: Annotated[Path, Option("Folder of an export.", place="OUT")],
    level: Annotated[
        str | None,
        Option(
            "What to check; default: the highest that fits in memory.", takes="bytes|load|logits"
        ),
    ] = None,
    source: Annotated[Text | None, _SOURCE] = None,
    tokens: Annotated[int, Field(ge=1), Option("Random tokens to run.")] = 128,
    stream_layers: StreamLayers = False,
    stats_dir: StatsDir | None = None,
    dry_run: options.Cost = False,
) -> None:
    """Check an exported checkpoint: bytes and hashes, loading, equality with the masked source.

    Example: moeprune verify smaller-demo --source demo
    """
    described = load_model_index(source) if source else None
    way = {"level": level, "stream_layers": stream_layers}
    if dry_run:
        whole, memory, reached = expected_verify(out_dir, described, stats_dir, **way)
        outcome = told(whole, memory)
        finish(f"{outcome.sentence}; level {reached}", {**outcome.numbers, "level": reached})
        return
    checks = follow(verify_result(out_dir, described, stats_dir, tokens=tokens, **way))
    report_checks(out_dir, checks, has_source=described is not None)
