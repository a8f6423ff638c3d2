"""Compare checkpoints: which experts a published pruned checkpoint kept, as a plan."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from typing import Annotated, Final

from analysis.files.shipped import tool_version
from analysis.model.moe_model import MoEModel
from analysis.model.opening import load_model_index
from analysis.numbers.words import counted
from pruning.actions.action import Action, Call, Note, Outcome, Table
from pruning.option import Option
from pruning.plan.experts_per_token import TopK
from pruning.plan.layer_words import ranges
from pruning.plan.plan import Provenance, PruningPlan, fit_plan, model_ref
from pruning.requests.following import commands_after_plan
from pruning.requests.model import ModelRequest
from pruning.spec import options
from pruning.spec.base import command_line, option_words
from pruning.surgery.matching import CheckpointMatch, LayerMatch, OtherTensors, match_checkpoints
from pruning.tasks import Steps

_LAYER_COLUMNS = ("layers", "experts kept", "by bytes", "router rows agree", "noted")
_OTHER_COLUMNS = ("tensors", "equal", "once cast", "differ", "original only", "pruned only")


class CompareCheckpointsRequest(ModelRequest):
    """A model, and a pruned checkpoint of it."""

    asked_by = "compare-checkpoints"
    writes = "published.plan.json"
    model: Annotated[options.Model, Option(place="ORIGINAL")]
    pruned: Annotated[
        options.Text,
        Option("Pruned checkpoint of it, by any program: a folder or a hub id.", place="PRUNED"),
    ]
    pruned_revision: Annotated[
        options.Revision | None, Option("Revision of PRUNED, if that is a hub model.")
    ] = None
    stats_dir: options.StatsDir | None = None

    def command(self, plans: Sequence[str] = (), out: str = "") -> str:
        """The equivalent command line."""
        del plans  # it writes one
        words = option_words(self)
        return command_line(
            self.asked_by, self.model, self.pruned, *words, "-o", out or self.writes
        )


@dataclass(frozen=True, eq=False)
class ComparedCheckpoints:
    """What a pruned checkpoint kept of a model."""

    match: CheckpointMatch
    plan: PruningPlan  # of the original


def _run(request: CompareCheckpointsRequest) -> Steps[ComparedCheckpoints]:
    original = load_model_index(request.model, revision=request.revision)
    pruned = load_model_index(request.pruned, revision=request.pruned_revision)
    match = yield from match_checkpoints(original, pruned)
    provenance = Provenance(
        schedule="file",
        tool_version=tool_version(),
        schedule_parameters={"checkpoint": pruned.name, "checkpoint_identity": pruned.identity},
    )
    plan = fit_plan(PruningPlan(model_ref(original), match.kept, provenance), original)
    return ComparedCheckpoints(match, replace(plan, top_k=_fewer_per_token(original, pruned)))


def _fewer_per_token(original: MoEModel, pruned: MoEModel) -> TopK:
    """What the pruned one selects by layer; empty unless that is less somewhere."""
    own = {layer.index: layer.top_k for layer in original.layers}
    top_k = {layer.index: min(layer.top_k, own[layer.index]) for layer in pruned.layers}
    return {} if top_k == own else top_k


def _tell(call: Call[CompareCheckpointsRequest], compared: ComparedCheckpoints) -> Outcome:
    """What was kept in each layer and how that is known, and the commands for the plan."""
    match, request = compared.match, call.request
    layers = match.layers
    kept, total = sum(len(x.kept) for x in layers), sum(x.num_experts for x in layers)
    places = sum(len(layer.experts) for layer in layers)
    by_bytes = sum(len(layer.by_bytes) for layer in layers)
    numbers = {
        "kept": kept,
        "experts": total,
        "by_bytes": by_bytes,
        "changed": sum(len(layer.changed) for layer in layers),
        "by_router": sum(len(layer.by_router) for layer in layers),
        "disputed": sum(len(layer.disputed) for layer in layers),
        "other_tensors": {kind: asdict(counts) for kind, counts in match.others.items()},
    }
    way = "all by their bytes"
    if by_bytes < places:
        way = f"{by_bytes} of {places} by their bytes"
    return Outcome(
        f"{match.pruned.name} keeps {kept} of {total} experts of {match.original.name}, {way}",
        numbers,
        (
            Table("experts of the original", _LAYER_COLUMNS, list(_layer_rows(layers))),
            Table("all other tensors, by name", _OTHER_COLUMNS, _other_rows(match.others)),
            *map(Note, _notes(compared)),
        ),
        commands_after_plan(request, match.original, call.out, compared.plan),
        compared.plan,
    )


def _layer_rows(layers: Sequence[LayerMatch]) -> Iterator[tuple[object, ...]]:
    """A row for each run of layers of which the same is to be said."""

    def said(layer: LayerMatch) -> tuple[str, ...]:
        places = len(layer.experts)
        return (
            f"{len(layer.kept)} of {layer.num_experts}",
            f"{len(layer.by_bytes)} of {places}",
            f"{places - len(layer.disputed)} of {places}",
            "; ".join(_said_of(layer)),
        )

    for words, run in groupby(layers, key=said):
        yield ranges(layer.layer for layer in run), *words


def _said_of(layer: LayerMatch) -> Iterator[str]:
    """What is unusual in a layer."""
    if count := len(layer.by_router):
        which, tells = ("experts have", "their router rows tell")
        if count == 1:
            which, tells = ("expert has", "its router row tells")
        yield f"{count} {which} the bytes of no expert; {tells}"
    for projections, places in _grouped(layer):
        yield f"{counted(len(places), 'expert')} changed in {', '.join(projections)}"
    if foreign := [place for place, other in layer.disputed.items() if other is None]:
        yield f"the router rows of {ranges(foreign)} are of no expert"
    others = {place: other for place, other in layer.disputed.items() if other is not None}
    yield from (
        f"expert {place} has the bytes of {layer.experts[place]} and the router row of {other}"
        for place, other in others.items()
    )
    if layer.repeated:
        yield f"{ranges(layer.repeated)} stand there twice"
    if not layer.is_ordered:
        yield "in another order"


def _grouped(layer: LayerMatch) -> Iterator[tuple[tuple[str, ...], list[int]]]:
    """Projections that changed together -> the places where they did."""
    pairs = sorted((projections, place) for place, projections in layer.changed.items())
    for projections, group in groupby(pairs, key=lambda pair: pair[0]):
        yield projections, [place for _, place in group]


def _other_rows(others: Mapping[str, OtherTensors]) -> list[tuple[object, ...]]:
    return [(kind, *asdict(counts).values()) for kind, counts in others.items()]


def _notes(compared: ComparedCheckpoints) -> Iterator[str]:
    """What the plan does not say."""
    match = compared.match
    for first, second in match.cast:
        yield f"Experts are {first} in the original and {second} here; it was cast for this."
    for first, second in match.uncompared:
        yield f"Experts are {first} in the original and {second} here, so no bytes are the same."
    if any(layer.changed or layer.by_router for layer in match.layers):
        yield (
            f"The plan says which experts {match.pruned.name} kept. Their weights there are "
            "others (merged, repaired, trained or quantised), and the plan's are the original's."
        )
    if per_token := compared.plan.per_token:
        yield f"It selects fewer experts per token ({per_token}), and so does the plan."
    more = [
        n
        for n, own in zip(match.pruned.layers, match.original.layers, strict=True)
        if n.top_k > own.top_k
    ]
    if more:
        yield (
            f"It selects more experts per token than the original in layers "
            f"{ranges(layer.index for layer in more)}, and the plan does not."
        )


ACTION: Final = Action(
    CompareCheckpointsRequest,
    _run,
    _tell,
    "compare-checkpoints demo published",
    "experts of {about}",
)
