"""Commands that write and prove checkpoints: export, verify."""

from pathlib import Path
from typing import Annotated

from pydantic import Field

from analysis.errors import ExportError
from analysis.model.moe_model import MoEModel
from analysis.model.opening import load_model_index
from analysis.stats.store import stats_store
from app.cli import options
from app.cli.action import perform, show
from app.cli.derive import command
from app.cli.say import show_width_options
from app.console import finish, follow, note
from pruning.actions.action import Call
from pruning.actions.checks import checked
from pruning.actions.expected import told
from pruning.actions.export import ACTION
from pruning.option import Option
from pruning.plan.copies import plan_for_copy
from pruning.plan.plan import NEURON_GRANULARITY
from pruning.plan.plan_file import load_plan
from pruning.plan.routing import plan_routing
from pruning.plan.widths import WidthChoice, WidthMode
from pruning.requests.model import ExportRequest
from pruning.spec.options import StatsDir, StreamLayers, Text
from pruning.tasks.export import check_verified, expected_verify, verify_result
from pruning.tasks.probing import probed, probing

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
    if chosen.granularity == NEURON_GRANULARITY:
        routing = plan_routing(chosen, model, stats_store(request.stats_dir))
        choice = WidthChoice(WidthMode(request.width_mode or "uniform"), request.width_multiple_of)
        show_width_options(model, chosen, choice, routing)
    call = Call(request.into(ExportRequest, plan=chosen.to_dict()), plans)
    perform(ACTION, call, dry_run=dry_run)


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
    way = {"level": level, "tokens": tokens, "stream_layers": stream_layers}

    def run_model() -> MoEModel:
        return described or load_model_index(str(out_dir))

    if dry_run:
        said = expected_verify(out_dir, described, stats_dir, **way)
        follow(probing(said.whole, run_model(), device="cpu"))
        outcome = told(said.whole, said.memory, beside=said.beside)
        finish(f"{outcome.sentence}; level {said.level}", {**outcome.numbers, "level": said.level})
        return
    verifying = verify_result(out_dir, described, stats_dir, **way)
    checks = follow(probed(verifying, lambda: (run_model(), "auto", "cpu")))
    first, *others = checks["checks"]
    if not others and not first["ok"]:
        raise ExportError(first["detail"])  # no export, of which there is nothing to tell
    outcome = checked(out_dir, checks, has_source=described is not None)
    show(outcome.shown)
    finish(outcome.sentence, outcome.numbers, *outcome.following)
    check_verified(out_dir, checks["checks"])
