"""Placement: which experts stay on a device that cannot hold them all; nothing is deleted."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import floor
from typing import Annotated, Any, Final, Literal

import numpy as np

from analysis.corpora.spec import parse_corpus_weight
from analysis.criteria import CRITERIA
from analysis.model.moe_model import MoEModel
from analysis.model.opening import load_model_index
from analysis.numbers.arrays import FloatArray
from analysis.ranking.choose import Choice, choose_stats, readable_runs, run_by_corpus
from analysis.stats.reading import load_expert_stats
from analysis.stats.store import StatsStore, stats_store
from analysis.stats.tables import ExpertStats
from pruning.actions.action import Action, Call, Note, Outcome, Section, Table
from pruning.option import Option
from pruning.plan.bits import FORMATS, OWN, BitsName
from pruning.plan.budget import GIB, parse_gib
from pruning.plan.layer_words import ranges
from pruning.plan.sizes import format_bytes
from pruning.planning.placement import (
    LayerPlacement,
    Placement,
    expert_bytes,
    place_experts,
    place_layers,
    room_for_experts,
    share_served,
)
from pruning.planning.ranking import Ranking
from pruning.requests.evaluation import NamedCriterion, RankedRequest
from pruning.requests.model import ModelRequest
from pruning.serving.commands import LLAMA_CPP
from pruning.serving.engines import Reads, contents_of, verdicts
from pruning.serving.placement import llama_cpp_command, n_cpu_moe, override_tensor
from pruning.spec import options, plan_options
from pruning.spec.spec import FREQUENCY, spec_of
from pruning.study import Study
from pruning.tasks import Steps


class PlacementRequest(RankedRequest, ModelRequest):
    """A device's budget, and what ranks the experts for it."""

    asked_by = "placement"
    writes = "placement.json"
    budget: plan_options.DeviceBudget
    criterion: NamedCriterion = FREQUENCY
    schedule: Annotated[
        Literal["global", "global-rescaled", "uniform", "frequency"],
        Option(
            "How the experts on the device are spread over the layers; global compares all, "
            "uniform gives each layer as many.",
            takes="global|global-rescaled|uniform|frequency",
            heading="Layers",
        ),
    ] = "global"
    bits: Annotated[
        BitsName,
        Option(
            f"Bits of the experts' weights that are served; {OWN}: as the checkpoint has them. All "
            "other weights count as stored."
        ),
    ] = OWN
    granularity: Literal["expert"] = "expert"
    runs: tuple[options.Run, ...] = ()
    stats_dir: options.StatsDir | None = None

    @property
    def nbytes(self) -> int:
        """The budget in bytes."""
        return floor(parse_gib(str(self.budget)) * GIB)


@dataclass(frozen=True, eq=False)
class Placements:
    """What stays on the device, by single experts and by whole layers."""

    model: MoEModel
    ranking: Ranking
    by_expert: Placement
    by_layer: Placement
    counted: tuple[str, ...]  # ids of the runs whose routed tokens tell the shares; empty: unknown
    elsewhere: Mapping[str, float]  # other corpora -> what the experts on the device serve there


def _run(request: PlacementRequest) -> Steps[Placements]:
    model = load_model_index(request.model, revision=request.revision)
    store = stats_store(request.stats_dir)
    room, sizes = room_for_experts(model, request.nbytes), expert_bytes(model, request.bits)
    spec = spec_of(
        criterion=request.criterion,
        corpora=request.calibrated_on,
        runs=request.runs,
        gate=request.gate,
        schedule=request.schedule,
        sparsity="0",
    )
    if not spec.reads_text:
        spec = spec.changed(corpora=(), runs=())
    ranking = yield from Study.of(request, model, store).rank(spec)
    tokens = _routed_tokens(request, ranking, store)
    counts = _counts_of(tokens.stats) if tokens else None
    counted = tuple(run.manifest.run_id for run in tokens.runs) if tokens else ()
    by_expert = place_experts(ranking, sizes, room, counts)
    by_layer = place_layers(model, sizes, room, counts)
    runs = run_by_corpus(readable_runs(store, model, CRITERIA[FREQUENCY]))
    elsewhere = {
        corpus: share_served(by_expert, _counts_of(load_expert_stats(run)))
        for corpus, run in runs.items()
        if run.manifest.run_id not in counted
    }
    return Placements(model, ranking, by_expert, by_layer, counted, elsewhere)


def _counts_of(stats: ExpertStats) -> FloatArray:
    """(layers, experts) routed tokens, NaN beyond a layer's experts."""
    return stats.grid.fold(np.asarray(stats.table["num_tokens"], dtype=np.float64))


def _routed_tokens(
    request: PlacementRequest, ranking: Ranking, store: StatsStore
) -> Choice[Any] | None:
    """The statistics that count routed tokens: those that rank, if they do; None without any.

    Of a criterion that reads no tokens they are those of the corpora that are named, else of all.
    """
    if ranking.tokens is not None:
        return ranking.tokens
    frequency, named = CRITERIA[FREQUENCY], request.calibrated_on
    if not named and not request.runs:
        named = tuple(run_by_corpus(readable_runs(store, ranking.model, frequency)))
    if not named and not request.runs:
        return None
    corpora = tuple(map(parse_corpus_weight, named))
    return choose_stats(frequency, store, ranking.model, corpora, request.runs)


def _tell(call: Call[PlacementRequest], placed: Placements) -> Outcome:
    """What each layer keeps on the device, and how llama.cpp is told of whole layers."""
    request, experts, layers = call.request, placed.by_expert, placed.by_layer
    size = f"{format_bytes(experts.device_bytes)} of {format_bytes(request.nbytes)}"
    if request.bits != OWN:
        size += f" ({format_bytes(experts.other_bytes)} of it other weights, as stored)"
    sentence = (
        f"{experts.experts_on_device} of {placed.model.num_experts} experts on the device, {size}"
        f"{_served_words(experts)}; whole layers for {LLAMA_CPP}: {_whole(layers)}"
        f"{_served_words(layers)}"
    )
    values = _values(request, placed)
    told = ("other_bytes", "device_bytes", "host_bytes", "served", "served_elsewhere")
    numbers = {
        **{name: values[name] for name in told},
        "experts_on_device": experts.experts_on_device,
        "layers": [
            {**row, "device": len(row["device"]), "host": len(row["host"])}
            for row in values["layers"]
        ],
        "llama_cpp": values["llama_cpp"],
    }
    notes = map(Note, _notes(request, placed))
    shown: tuple[Section, ...] = (_table(experts, layers), *notes, _command_words(placed))
    return Outcome(sentence, numbers, shown, content=values)


def _whole(layers: Placement) -> str:
    there = [layer.layer for layer in layers.layers if layer.is_whole]
    return f"{len(there)} of {len(layers.layers)}"


def _served_words(placement: Placement) -> str:
    if (served := placement.served) is None:
        return ""
    return f", which serve {served:.1%} of routed choices"


def _values(request: PlacementRequest, placed: Placements) -> dict[str, Any]:
    """The content of placement.json."""
    experts, layers = placed.by_expert, placed.by_layer
    sparse = [layer.layer for layer in layers.layers]
    return {
        "model": {"name": placed.model.name, "identity": placed.model.identity},
        "criterion": request.criterion,
        "schedule": request.schedule,
        "corpora": list(placed.ranking.choice.corpora),
        "counted_in": list(placed.counted),
        "bits": request.bits,
        "budget": request.nbytes,
        "other_bytes": experts.other_bytes,
        "device_bytes": experts.device_bytes,
        "host_bytes": experts.host_bytes,
        "served": experts.served,
        "served_elsewhere": dict(placed.elsewhere),
        "layers": [_layer_values(layer) for layer in experts.layers],
        "llama_cpp": {
            "device_layers": [layer.layer for layer in layers.layers if layer.is_whole],
            "host_layers": list(layers.host_layers),
            "device_bytes": layers.device_bytes,
            "host_bytes": layers.host_bytes,
            "served": layers.served,
            "override_tensor": override_tensor(layers.host_layers),
            "n_cpu_moe": n_cpu_moe(sparse, layers.host_layers),
            "command": llama_cpp_command(layers.host_layers),
        },
    }


def _layer_values(layer: LayerPlacement) -> dict[str, Any]:
    return {
        "layer": layer.layer,
        "device": list(layer.device),
        "host": list(layer.host),
        "device_bytes": layer.device_bytes,
        "host_bytes": layer.host_bytes,
        "served": layer.served,
    }


def _table(experts: Placement, layers: Placement) -> Table:
    columns = ("layer", "on the device", "of", "bytes", "served", f"in {LLAMA_CPP}")
    rows = [
        (
            layer.layer,
            len(layer.device),
            len(layer.device) + len(layer.host),
            format_bytes(layer.device_bytes),
            "" if layer.served is None else layer.served,
            "device" if whole.is_whole else "CPU",
        )
        for layer, whole in zip(experts.layers, layers.layers, strict=True)
    ]
    return Table("Experts on the device, and the share of routed choices they serve", columns, rows)


def _notes(request: PlacementRequest, placed: Placements) -> list[str]:
    """What the shares and the budget stand on, and where llama.cpp stops."""
    model, experts = placed.model, placed.by_expert
    other = f"{format_bytes(experts.other_bytes)} of the device are weights besides routed experts"
    notes = [f"{other}, as stored; KV cache, activations and prediction heads are not counted"]
    if placed.counted:
        notes.append(f"shares by the routed tokens of {', '.join(placed.counted)}")
    else:
        notes.append(
            f"no run counted routed tokens of {model.name}, so shares are unknown: `moeprune "
            f"calibrate {request.model} --corpus CORPUS`"
        )
    if placed.elsewhere and placed.counted:
        shares = (f"{share:.1%} of {corpus}" for corpus, share in placed.elsewhere.items())
        notes.append(f"on other corpora the same experts serve {', '.join(shares)}")
    if placed.by_layer.host_layers and len({layer.top_k for layer in model.layers}) == 1:
        notes.append(
            f"{LLAMA_CPP} keeps a layer's experts in one tensor, and every layer serves as many "
            "choices: only bytes tell layers apart, so the last that fit stay"
        )
    if form := FORMATS.get(request.bits):
        notes.append(f"experts in {form.label}, near {LLAMA_CPP}'s {form.near}")
    verdict = next(v for v in verdicts(contents_of(model)) if v.engine == LLAMA_CPP)
    if verdict.reads in (Reads.FAILS, Reads.WRONG):
        notes.append(f"{LLAMA_CPP}, {verdict.reads} on this checkpoint: {verdict.reason}")
    return notes


def _command_words(placed: Placements) -> str:
    """The command that serves, and the shorter option where one means the same."""
    host = placed.by_layer.host_layers
    same = n_cpu_moe([layer.layer for layer in placed.by_layer.layers], host)
    words = f"{LLAMA_CPP}: {llama_cpp_command(host)}"
    if not host:
        return words
    short = f"the same as --n-cpu-moe {same}" if same is not None else f"layers {ranges(host)}"
    return f"{words}  # {short}"


ACTION: Final = Action(
    PlacementRequest,
    _run,
    _tell,
    "placement demo --budget 6MiB --calibrated-on demo-code",
    "placement of {about} in {request.budget}",
)
