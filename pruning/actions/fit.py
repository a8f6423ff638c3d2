"""Fit: which experts and how many bits reach a size at the least loss, by stored evaluations."""

from collections.abc import Mapping, Sequence
from math import floor
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field

from analysis.model.moe_model import MoEModel
from analysis.model.opening import load_model_index
from analysis.progress import Progress
from analysis.stats.store import stats_store
from pruning.actions.action import Action, Call, Note, Outcome, Table
from pruning.option import Option
from pruning.plan.bits import BY_LAYER, FORMATS, OWN
from pruning.plan.budget import GIB, parse_gib
from pruning.plan.expert_sizes import fits_k_types
from pruning.plan.sizes import format_bytes
from pruning.planning.front_words import (
    candidate_name,
    describe,
    loss_text,
    measured_on,
    range_text,
)
from pruning.records.evaluation import EvaluationStore
from pruning.records.front import Front, stored_front
from pruning.records.plan_facts import PlanFacts
from pruning.records.quality import PlanLoss
from pruning.records.repair import RepairRecord
from pruning.records.repair_files import repair_folder
from pruning.requests.following import export_command, pruned_name
from pruning.requests.model import ModelRequest
from pruning.requests.plan import SpecRequest
from pruning.requests.repair import RepairRequest
from pruning.serving.tensor_types import quantise_command, tensor_types
from pruning.spec import options, plan_options
from pruning.tasks import Steps

_COLUMNS = ("way", "size", "loss", "range", "worst", "known by", "layers")
_GGUF = "model.gguf"


class FitRequest(ModelRequest):
    """Which experts and how many bits reach a size, by stored evaluations."""

    asked_by = "fit"
    target_size: plan_options.TargetSize
    ways: Annotated[
        int,
        Field(strict=True, ge=1, le=100),
        Option("How many ways to show, besides the best that engines load."),
    ] = 5
    stats_dir: options.StatsDir | None = None

    @property
    def nbytes(self) -> int:
        """The size in bytes."""
        return floor(parse_gib(str(self.target_size)) * GIB)


def _run(request: FitRequest) -> Steps[Front]:
    yield Progress("reading evaluations", 0, 0)
    model = load_model_index(request.model, revision=request.revision)
    return stored_front(EvaluationStore(stats_store(request.stats_dir).directories), model)


def _tell(call: Call[FitRequest], front: Front) -> Outcome:
    """The best ways, and the commands of the best that engines load at this size."""
    request = call.request
    model = load_model_index(request.model, revision=request.revision)
    ways = _shown(front, request)
    alike = [_layers_are_alike(front.plans[way["plan"]]) for way in ways]
    rows = [
        (
            candidate_name(way),
            format_bytes(way["bytes"]),
            loss_text(way["mean"]),
            range_text(way),
            f"{way['worst']:+z.3f} on {way['worst_on']}",
            f"{'measured' if way['is_measured'] else 'sum'}, {way['range']}",
            "alike" if is_alike else "differ",
        )
        for way, is_alike in zip(ways, alike, strict=True)
    ]
    best = alike.index(True) if any(alike) else 0
    way, (name, size, loss, *_) = ways[best], rows[best]
    # Exports have a head of their own, the checkpoint as it is has not.
    is_tied = not way["removed"] and model.tied_embedding is not None
    notes = [describe(front), measured_on(front), *_caveats(model, way, alike, is_tied=is_tied)]
    title = f"at most {format_bytes(request.nbytes)}"
    return Outcome(
        f"{name}: {size}, loss {loss}",
        {"ways": [{key: _known(cell) for key, cell in entry.items()} for entry in ways]},
        (
            Table(title, _COLUMNS, rows, ("range", "worst"), ("size", "range", "worst")),
            *map(Note, notes),
        ),
        _commands(request, front.plans[way["plan"]], way, converts=alike[best] and not is_tied),
    )


def _shown(front: Front, request: FitRequest) -> list[dict[Any, Any]]:
    """The best ways, and the best that engines load if it is not among them."""
    ways = front.ways_to(request.nbytes).to_dict("records")
    best, rest = ways[: request.ways], ways[request.ways :]
    if any(_layers_are_alike(front.plans[way["plan"]]) for way in best):
        return best
    return best + [way for way in rest if _layers_are_alike(front.plans[way["plan"]])][:1]


def _known(cell: Any) -> Any:
    """A cell of a table; None where it is NaN, which JSON has not."""
    return cell if cell == cell else None


def _caveats(
    model: MoEModel, way: Mapping[Any, Any], alike: Sequence[bool], *, is_tied: bool
) -> list[str]:
    """What engines do not read as it is: of ways by whether their layers are alike, of the best."""
    notes = []
    if not all(alike):
        words = "Where layers or experts differ in size, only load_pruned loads it this small"
        rest = "; the commands are of the best that are alike." if any(alike) else "."
        notes.append(f"{words}{rest}")
    near = FORMATS[way["bits"]].near if way["bits"] in FORMATS else ""
    if "_K" in near and not fits_k_types(model):
        notes.append(
            f"{near} needs rows of 256 weights: llama-quantize takes a larger type for this model."
        )
    if near and is_tied:
        notes.append(
            f"llama.cpp needs the tied embedding of {model.name} written as head, which the size "
            "counts: add it to the checkpoint before you convert it."
        )
    return notes


def _layers_are_alike(loss: PlanLoss) -> bool:
    """Whether the plan of a way keeps one number of experts, or one width, in every layer."""
    asked = loss.facts.asked
    if asked is None or not loss.facts.removed:
        return not loss.facts.removed
    return asked.leaves_layers_alike and (
        not asked.by_neuron or asked.spread.neuron_scope == "expert"
    )


def _commands(
    request: FitRequest, loss: PlanLoss, way: Mapping[Any, Any], *, converts: bool
) -> list[str]:
    """The commands that make a way: plan, repair, export, and the engine's own for fewer bits.

    `converts`: llama.cpp reads the checkpoint.
    """
    commands, folder, plan = [], request.model, SpecRequest.writes
    if loss.facts.removed:
        if loss.facts.asked is None:
            return []
        spec = SpecRequest(
            model=request.model,
            plan=loss.facts.asked,
            revision=request.revision,
            stats_dir=request.stats_dir,
        )
        commands.append(spec.command())
        if loss.is_repaired:
            refit = _refit(request, loss.facts)
            commands.append(refit.command((plan,)))
            plan = refit.writes
        folder = pruned_name(request.model)
        place = ("--stats-dir", str(request.stats_dir)) if request.stats_dir else ()
        words = ("--plan", plan, "--verify", *(place if loss.is_repaired else ()))
        commands.append(export_command(request.model, *words))
    if way["bits"] and converts:
        commands.append(f"python convert_hf_to_gguf.py {folder} --outfile {_GGUF} --outtype bf16")
        commands.append(_quantise(request, loss.facts, way["bits"]))
    return commands


def _quantise(request: FitRequest, facts: PlanFacts, bits: str) -> str:
    """The command that gives a GGUF file the bits of a way."""
    if bits != BY_LAYER:
        near = FORMATS[bits].near
        return f"llama-quantize {_GGUF} model-{near}.gguf {near}"
    layers = load_model_index(request.model, revision=request.revision).layers
    by_layer = {layer.index: facts.layer_bits.get(str(layer.index), OWN) for layer in layers}
    return quantise_command(
        tensor_types(by_layer, "bf16"), Path(_GGUF), Path("model-by-layer.gguf")
    )


def _refit(request: FitRequest, facts: PlanFacts) -> RepairRequest:
    """The repair whose loss was measured; where its record is not here, in the usual dtype."""
    directories = stats_store(request.stats_dir).directories
    identity = load_model_index(request.model, revision=request.revision).identity
    folder = repair_folder(facts.repair, directories, identity)
    record = folder and RepairRecord.read(folder.with_suffix(".json"))
    files = {corpus.name: corpus.path for corpus in record.corpora} if record else {}
    as_ranked = facts.repaired_on == facts.corpora
    return RepairRequest(
        model=request.model,
        revision=request.revision,
        plan={},
        corpora=() if as_ranked else tuple(files.get(name) or name for name in facts.repaired_on),
        tokens=facts.repair_tokens,
        stats_dir=request.stats_dir,
        **(record.settings if record else {}),
    )


ACTION: Final = Action(
    FitRequest,
    _run,
    _tell,
    "fit demo --target-size 3.5MiB",
    "ways of {about} to {request.target_size}",
)
