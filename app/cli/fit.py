"""fit: which experts and how many bits reach a size at the least loss."""

from collections.abc import Mapping
from math import floor
from typing import Any

from analysis.model.opening import load_model_index
from analysis.stats.store import stats_store
from app.charts.front_words import candidate_name, describe, loss_text, measured_on, range_text
from app.cli.derive import command
from app.console import finish, note, show_table
from pruning.plan.bit_sizes import fits_k_types
from pruning.plan.bits import FORMATS
from pruning.plan.budget import GIB, parse_gib
from pruning.plan.repair_reference import Repair
from pruning.plan.sizes import format_bytes
from pruning.records.evaluation import EvaluationStore
from pruning.records.front import stored_front
from pruning.records.plan_facts import PlanFacts
from pruning.records.quality import PlanLoss
from pruning.records.repair import RepairRecord
from pruning.requests.fit import FitRequest
from pruning.requests.following import export_command, pruned_name
from pruning.requests.plan import SpecRequest
from pruning.requests.repair import RepairRequest

_COLUMNS = ("way", "size", "loss", "range", "worst", "known by", "layers")
_GGUF = "model.gguf"


@command(FitRequest)
def fit(request: FitRequest) -> None:
    """Show the best ways to a size: fewer experts, fewer bits, or both, by their loss.

    Example: moeprune fit demo --target-size 3.5MiB
    """
    model = load_model_index(request.model, revision=request.revision)
    front = stored_front(EvaluationStore(stats_store(request.stats_dir).directories), model)
    nbytes = floor(parse_gib(str(request.target_size)) * GIB)
    ways = front.ways_to(nbytes).head(request.ways).to_dict("records")
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
    show_table(
        f"at most {format_bytes(nbytes)}",
        _COLUMNS,
        rows,
        spare=("range", "worst"),
        whole=("size", "range", "worst"),
    )
    note(describe(front))
    note(measured_on(front))
    if not all(alike):
        words = "Where layers or experts differ in size, only load_pruned loads it this small"
        note(
            f"{words}; the commands are of the best that are alike." if any(alike) else f"{words}."
        )
    best = alike.index(True) if any(alike) else 0  # the first that engines load at this size
    name, size, loss, *_ = rows[best]
    near = FORMATS[ways[best]["bits"]].near if ways[best]["bits"] else ""
    if "_K" in near and not fits_k_types(model):
        note(
            f"{near} needs rows of 256 weights: llama-quantize takes a larger type for this model."
        )
    # Exports have a head of their own, the checkpoint as it is has not.
    is_tied = not ways[best]["removed"] and model.tied_embedding is not None
    if near and is_tied:
        note(
            f"llama.cpp needs the tied embedding of {model.name} written as head, which the size "
            "counts: add it to the checkpoint before you convert it."
        )
    finish(
        f"{name}: {size}, loss {loss}",
        {
            "ways": [
                {key: value if value == value else None for key, value in way.items()}
                for way in ways
            ]
        },
        *_commands(
            request,
            front.plans[ways[best]["plan"]],
            ways[best],
            converts=alike[best] and not is_tied,
        ),
    )


def _layers_are_alike(loss: PlanLoss) -> bool:
    """Whether the plan of a way keeps one number of experts, or one width, in every layer."""
    asked = loss.facts.asked
    if asked is None or not loss.facts.removed:
        return not loss.facts.removed
    return asked.is_even and (not asked.by_neuron or asked.spread.neuron_scope == "expert")


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
        near = FORMATS[way["bits"]].near
        commands.append(f"python convert_hf_to_gguf.py {folder} --outfile {_GGUF} --outtype bf16")
        commands.append(f"llama-quantize {_GGUF} model-{near}.gguf {near}")
    return commands


def _refit(request: FitRequest, facts: PlanFacts) -> RepairRequest:
    """The repair whose loss was measured; where its record is not here, in the usual dtype."""
    directories = stats_store(request.stats_dir).directories
    folder = Repair(facts.repair, digest="").place(directories)
    record = folder and RepairRecord.read(folder.with_suffix(".json"))
    files = {each.name: each.path for each in record.corpora} if record else {}
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
