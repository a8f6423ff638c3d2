"""Exports a pruned checkpoint, and verifies it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from analysis.calibration.weights import measure_weights
from analysis.errors import ExportError
from analysis.files.home import from_home
from analysis.model.heads import prediction_heads
from analysis.model.moe_model import MoEModel
from analysis.model.opening import load_model_index
from analysis.progress import Parts, Progress, Whole, cost
from analysis.stats.store import StatsStore, stats_store
from pruning.plan.heads import HeadChoice, HeadRanking, heads_bytes, heads_depend_on, heads_in_words
from pruning.plan.plan import KEEP_LIST_NAME, NEURON_GRANULARITY, PruningPlan, fit_plan, with_top_k
from pruning.plan.plan_file import plan_from_dict
from pruning.plan.sizes import parse_size, weight_bytes
from pruning.plan.widths import WidthChoice, WidthMode, plan_widths
from pruning.planning.ship_verdict import recorded_verdict
from pruning.records.cost import cost_of
from pruning.records.evaluation import EvaluationStore
from pruning.records.quality import stored_losses
from pruning.records.repair_files import content_record, stored_repair
from pruning.records.verdict import ShipVerdict
from pruning.requests.model import ExportRequest
from pruning.serving.engines import Contents, Readers, contents_of, equal_cut
from pruning.serving.gguf import Converter, converter_options, find_converter, gguf_path, write_gguf
from pruning.surgery.export import (
    ExportSettings,
    PreparedExport,
    check_place,
    export_checkpoint,
    planned_export,
    prepare_export,
)
from pruning.surgery.head_ranking import WeighedHeads, head_ranking, ranked_in_words
from pruning.surgery.heads import why_not_pruned
from pruning.surgery.manifest import MANIFEST_NAME, Manifest, SourceRecord, read_manifest
from pruning.surgery.verify_costs import export_costs
from pruning.tasks import Steps
from pruning.tasks.calibration import weights_costs
from pruning.tasks.loading import open_plan, quiet_transformers
from pruning.tasks.quantising import check_before_export, check_recipe, write_recipe


def export_run(request: ExportRequest) -> Steps[dict[str, Any]]:
    """Write the pruned checkpoint, then verify it if asked to: `verify` has the report.

    An export that fails a check is left where it is, and refused.
    This export, if it is there already, stays (`skipped`), as after a kill that followed its
    rename. Exports of discovered architectures are always verified, as nothing else shows that the
    architecture was understood.
    """
    model = load_model_index(request.model, revision=request.revision)
    plan = _plan(request, model)
    converter = _converter(request, model, plan)
    _check_recipe(request, model, plan)
    parts, verifies = Parts({}), request.verify or model.family.discovered
    if verifies:  # what is written states its own cost; memory decides whether models are run
        parts = Parts({"verify": export_costs(model, weight_bytes(model, plan))})
    if converter and request.gguf and not gguf_path(request.out, request.gguf).exists():
        parts.expect("gguf", {"write": cost("write", weight_bytes(model, plan))})
    manifest, skipped = yield from _written(request, model, plan, parts)
    result: dict[str, Any] = {
        "out": str(request.out),
        "skipped": skipped,
        "plan_digest": manifest.plan.digest,
        "heads": _heads_in_words(model, manifest),
        "repair": stored_repair(plan.repair).outcome if plan.repair else "",
    }
    simulated = fit_plan(plan_from_dict(request.plan), model)
    if simulated.named_bits:
        result["bits_by_layer"] = {str(n): bits for n, bits in simulated.bits_by_layer.items()}
    if verifies:
        checking = verify_result(
            request.out, model, request.stats_dir, stream_layers=request.stream_layers
        )
        result["verify"] = yield from parts.run("verify", checking)
        check_verified(request.out, result["verify"]["checks"])
    if request.gguf and converter:
        contents = replace(
            contents_of(load_model_index(str(request.out))),
            removes=equal_cut(plan, padded=manifest.padded),
        )
        digest = manifest.plan.digest
        converting = write_gguf(request.out, request.gguf, converter, contents, digest)
        result["gguf"] = yield from parts.run("gguf", converting)
    if recipe := (yield from write_recipe(request, model, plan)):
        result["recipe"] = recipe
    return result


def check_verified(out: Path, checks: Sequence[Mapping[str, Any]]) -> None:
    """Refuse an export that fails a check, by all that it fails."""
    failed = [f"{check['name']}: {check['detail']}" for check in checks if not check["ok"]]
    if failed:
        raise ExportError(f"{out} fails {len(failed)} of {len(checks)} checks:", failed)


def _written(
    request: ExportRequest, model: MoEModel, plan: PruningPlan, parts: Parts
) -> Steps[tuple[Manifest, bool]]:
    """The manifest of the export, and whether it was there already."""
    manifest = _manifest_there(request, plan)
    options = _options(request, model, plan, manifest)
    if manifest is None:
        if _weighed_heads(model, plan, options):  # before their weights are read, for minutes
            check_place(from_home(request.out), model.checkpoint.path)
        yield from check_before_export(request, model, plan)
        written = weight_bytes(model, plan) + heads_bytes(model, plan, options.heads)
        parts.expect("export", {"write": cost("write", written)})
    if manifest:
        _check_alike(request, manifest, planned_export(model, plan, request.out, options), options)
        return manifest, True
    options = yield from _weighed(model, plan, options, parts)
    writing = export_checkpoint(model, plan, request.out, options)
    return (yield from parts.run("export", writing)), False


def _weighed(
    model: MoEModel, plan: PruningPlan, options: ExportSettings, parts: Parts
) -> Steps[ExportSettings]:
    """The options, with the experts of heads weighed if their weights rank them."""
    heads = _weighed_heads(model, plan, options)
    for head, alone in heads.items():
        parts.expect(f"head {head}", weights_costs(alone))
    tables = {}
    for head, alone in heads.items():
        tables[head] = yield from parts.run(f"head {head}", measure_weights(alone))
    return replace(options, head_ranking=WeighedHeads(tables=tables)) if tables else options


def _weighed_heads(
    model: MoEModel, plan: PruningPlan, options: ExportSettings
) -> dict[str, MoEModel]:
    """The heads whose experts the export ranks by their weights, as models of their own."""
    ranking = options.head_ranking
    asks = options.heads is HeadChoice.PRUNE and heads_depend_on(model, plan)
    if not asks or not isinstance(ranking, WeighedHeads) or why_not_pruned(model, ranking):
        return {}
    heads = (head for head in prediction_heads(model) if head.has_experts)
    return {head.name: head.as_model(model) for head in heads}


def _heads_in_words(model: MoEModel, manifest: Manifest) -> str:
    heads = manifest.heads
    return heads_in_words(model, heads, ranked_in_words(heads.criterion, heads.runs))


def _converter(request: ExportRequest, model: MoEModel, plan: PruningPlan) -> Converter | None:
    """llama.cpp's converter, if it is needed; refuses what it cannot convert before any work."""
    if request.gguf is None:
        return None
    converter = find_converter(request.llama_cpp)
    converter_options(_contents(request, model, plan))
    return converter


def _contents(request: ExportRequest, model: MoEModel, plan: PruningPlan) -> Contents:
    """What decides who reads the export."""
    keeps_heads = request.mtp in (HeadChoice.KEEP, HeadChoice.PRUNE)
    widths = plan_widths(model, plan, _choice(request, plan))
    contents = contents_of(model, plan, widths, padded=request.pad, keeps_heads=keeps_heads)
    return contents.dequantised() if request.dequantise else contents


def _check_recipe(request: ExportRequest, model: MoEModel, plan: PruningPlan) -> None:
    if request.quantised_as:
        widths = plan_widths(model, plan, _choice(request, plan))
        check_recipe(request, model, plan, _contents(request, model, plan), widths)


def _choice(request: ExportRequest, plan: PruningPlan) -> WidthChoice | None:
    by_neuron = plan.granularity == NEURON_GRANULARITY
    mode = request.width_mode or ("uniform" if by_neuron else None)
    return WidthChoice(WidthMode(mode), request.width_multiple_of) if mode else None


def _plan(request: ExportRequest, model: MoEModel) -> PruningPlan:
    plan = open_plan(request.plan, model, stats_store(request.stats_dir))
    return with_top_k(plan, model, request.top_k).in_own_bits  # fewer are only simulated


def dry_export(request: ExportRequest, model: MoEModel) -> Steps[tuple[PreparedExport, bool]]:
    """The export as `export_run` would write it, and whether it is there.

    Checked as far as that needs no writing.
    """
    plan = _plan(request, model)
    _check_recipe(request, model, plan)
    manifest = _manifest_there(request, plan)
    options = _options(request, model, plan, manifest)
    if manifest is None:
        options = yield from _weighed(model, plan, options, Parts({}))
        return prepare_export(model, plan, request.out, options), False
    planned = planned_export(model, plan, request.out, options)
    _check_alike(request, manifest, planned, options)
    return planned, True


def is_finished_export(request: ExportRequest, model: MoEModel) -> bool:
    """Whether this export is there; one of another plan or with other options is refused.

    No weights are read.
    """
    plan = _plan(request, model)
    if (manifest := _manifest_there(request, plan)) is None:
        return False
    options = _options(request, model, plan, manifest)
    _check_alike(request, manifest, planned_export(model, plan, request.out, options), options)
    return True


_INSTEAD = "remove it, or give export another folder."


def _manifest_there(request: ExportRequest, plan: PruningPlan) -> Manifest | None:
    """Of the export that the folder holds, if it does; one of another plan is refused."""
    folder = request.out
    if not (folder / MANIFEST_NAME).is_file():
        return None
    manifest = read_manifest(folder)
    if manifest.plan.digest != plan.digest:
        raise ExportError(
            f"{folder} holds an export of another plan ({manifest.plan.digest[:8]}, "
            f"this one is {plan.digest[:8]}); {_INSTEAD}"
        )
    return manifest


def _check_alike(
    request: ExportRequest, manifest: Manifest, planned: PreparedExport, options: ExportSettings
) -> None:
    """Refuse an export that was written with other options."""
    sizes = {shard.name: shard.nbytes for shard in planned.shards}
    agree = {
        "mtp": planned.heads == manifest.heads,
        "width_mode": (planned.widths.choice if planned.widths else None) == manifest.widths,
        "pad": (planned.padding is not None) == manifest.padded,
        "dequantise": options.dequantise == manifest.dequantised,
        "keep_list": options.keep_list == (KEEP_LIST_NAME in manifest.files),
        "hash_source": options.hash_source <= bool(manifest.source.content_sha256),
        "max_shard_size": sizes == {shard.name: shard.bytes for shard in manifest.shards},
    }
    for option, is_alike in agree.items():
        if not is_alike:
            raise ExportError(
                f"{request.out} holds an export of this plan with another {option} than "
                f"is asked for; {_INSTEAD}"
            )


def _options(
    request: ExportRequest, model: MoEModel, plan: PruningPlan, there: Manifest | None
) -> ExportSettings:
    """The settings of an export; `there` is a finished one of the plan."""
    largest = request.max_shard_size
    store = stats_store(request.stats_dir)
    heads = HeadChoice(request.mtp) if request.mtp else None
    ranked = heads in (HeadChoice.KEEP, HeadChoice.PRUNE)  # if refused, keep recommends prune
    plan_source, revision = None, request.plan_model_revision
    if request.plan_model is not None:
        original = load_model_index(request.plan_model, revision=revision)
        plan_source = SourceRecord(original.name, original.identity, revision or "")
    evaluations = EvaluationStore(store.directories).snapshot(model.identity)
    losses = stored_losses(evaluations, model.identity)
    return ExportSettings(
        heads,
        _head_ranking(model, plan, store, there) if ranked else None,
        revision=request.revision or "",
        plan_source=plan_source,
        hash_source=request.hash_source,
        recipe=request.recipe.encode(),
        widths=_choice(request, plan),
        max_shard_bytes=parse_size(largest) if largest else None,
        pad=request.pad,
        dequantise=request.dequantise,
        cost=cost_of(fit_plan(plan, model), losses) if losses else None,
        judge=_judge(plan, model, store),
        read_repair=content_record,
        keep_list=request.keep_list,
    )


def _head_ranking(
    model: MoEModel, plan: PruningPlan, store: StatsStore, there: Manifest | None
) -> HeadRanking:
    """What ranks heads; beside a finished export of the plan no weights are read for it."""
    ranking = head_ranking(model, plan, store)
    if there is None or not isinstance(ranking, WeighedHeads):
        return ranking
    heads = there.heads
    weighed = heads.kept if (heads.criterion, heads.runs) == (ranking.criterion, ()) else {}
    return replace(ranking, recorded=weighed)


def _judge(
    plan: PruningPlan, model: MoEModel, store: StatsStore
) -> Callable[[int, Readers], ShipVerdict | None]:
    """The verdict on an export of a plan, by its bytes and the programs that load it."""

    def judged(num_bytes: int, readers: Readers) -> ShipVerdict | None:
        return recorded_verdict(plan, model, store, (num_bytes, readers))

    return judged


def verify_result(
    out: Path, source: MoEModel | None, stats_dir: Path | None = None, **way: Any
) -> Steps[dict[str, Any]]:
    """Verify an export; returns the report as plain JSON. `way` are options of `verify_export`."""
    # Said before the import, which takes seconds.
    yield Progress("verifying", 0, 0)
    from pruning.surgery.verify import verify_export

    quiet_transformers()
    steps = verify_export(
        out,
        source=source.checkpoint.path if source else None,
        directories=stats_store(stats_dir).directories,
        **way,
    )
    return asdict((yield from steps))


@dataclass(frozen=True, slots=True)
class ExpectedVerification:
    """What a verification would cost."""

    whole: Whole
    beside: int  # bytes of the source that are read beside those of the export
    memory: int  # bytes
    level: str  # that it reaches


def expected_verify(
    out: Path, source: MoEModel | None, stats_dir: Path | None = None, **way: Any
) -> ExpectedVerification:
    """What `verify_result` costs; nothing is read."""
    from pruning.surgery.verify import expected_verification

    costs, memory, level = expected_verification(
        out,
        source=source.checkpoint.path if source else None,
        directories=stats_store(stats_dir).directories,
        **way,
    )
    written = sum(file.stat().st_size for file in out.glob("*.safetensors"))
    return ExpectedVerification(Whole(costs), written if source else 0, memory, level)
