"""PruningPlan: which experts stay, why, and of which model. Writes plan.json."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from analysis.errors import PlanError
from analysis.files.durable import write_durably
from analysis.files.shipped import tool_version
from analysis.model.moe_model import ModelRef, MoEModel
from pruning.plan.bits import (
    BitsMixin,
    fit_layer_bits,
    ordered_layer_bits,
)
from pruning.plan.experts_per_token import (
    TopK,
    even_top_k,
    fit_top_k,
    ordered_top_k,
    top_k_text,
    top_k_to_json,
)
from pruning.plan.kept import (
    KeptNeurons,
    check_kept,
    counts_by_layer,
    fit_neurons,
    neurons_text,
    neurons_to_json,
    ordered_neurons,
)
from pruning.plan.layer_words import ranges
from pruning.plan.shown import DisplayMixin, Facts

if TYPE_CHECKING:
    from analysis.checkpoint.index import TensorEntry

SCHEMA_VERSION = 1
EXPERT_GRANULARITY = "expert"
NEURON_GRANULARITY = "neuron"
ATOMIC = "atomic"  # neuron, after HEAPr's atomic experts: in digests and in older plans
KEEP_LIST_NAME = "kept_experts.json"  # in an export
_GRANULARITIES = (EXPERT_GRANULARITY, NEURON_GRANULARITY)


def digest_word(granularity: str) -> str:
    """A granularity as digests of plans and records have it."""
    return ATOMIC if granularity == NEURON_GRANULARITY else granularity


@dataclass(frozen=True, slots=True)
class Provenance:
    """How a plan was made; not part of its digest."""

    criterion: str = ""  # name or `b,alpha,beta`
    gate: str = ""  # `applied` or `renormalized`; empty if the criterion uses no gate weights
    corpora: tuple[str, ...] = ()  # names of the calibration corpora
    runs: tuple[str, ...] = ()  # ids of the calibration runs
    schedule: str = ""  # name of the schedule
    sparsity: str = ""  # fraction removed, as asked for
    tool_version: str = ""  # version of the program that made the plan
    # Plain JSON, absent in plans of earlier versions: `Budget.to_dict`, what else the schedule was
    # given, such as its file, and `Constraints.to_dict`.
    budget: Mapping[str, Any] = field(default_factory=dict, hash=False)
    schedule_parameters: Mapping[str, Any] = field(default_factory=dict, hash=False)
    constraints: Mapping[str, Any] = field(default_factory=dict, hash=False)
    # `PlanSpec.to_json`: all that was asked for. Empty for plans that are made otherwise.
    spec: Mapping[str, Any] = field(default_factory=dict, hash=False)
    # Corpus -> `conversations`, `tools` and `skipped_rows`, of those with tools or rows left out.
    rows: Mapping[str, Mapping[str, int]] = field(default_factory=dict, hash=False)
    tokens: int = 0  # of the part of the runs that ranked; 0: all that the runs counted

    @property
    def amount(self) -> str:
        """How much was asked to go, for people: a sparsity, or a share or size with its kind."""
        kind = self.budget.get("kind")
        is_size = kind in ("shrink", "params", "size")
        return self.sparsity or (f"{kind} {self.budget.get('asked')}" if is_size else "")


def layer_file(layer: int) -> str:
    """Name of the file of a layer's new projections."""
    return f"layer-{layer:05d}.safetensors"


@dataclass(frozen=True, slots=True)
class Repair:
    """A repair, by its record; with its files once they are found."""

    record_id: str
    digest: str  # of its plan, its text and the bytes of its files
    corpora: tuple[str, ...] = ()  # names of those that it was fitted on
    tokens: int = 0  # of them together
    folder: Path | None = field(default=None, compare=False)  # of its files

    @property
    def words(self) -> str:
        """What it was fitted on, for people."""
        return f"fitted on {self.tokens:,} tokens of {', '.join(self.corpora) or 'unknown corpora'}"

    def to_dict(self) -> dict[str, Any]:
        """As in plan.json."""
        return {
            "record_id": self.record_id,
            "digest": self.digest,
            "corpora": list(self.corpora),
            "tokens": self.tokens,
        }

    @property
    def files(self) -> dict[str, Path]:
        """Name -> file of all layers that gained something, as far as they are here."""
        paths = sorted(self.folder.glob("layer-*.safetensors")) if self.folder else ()
        return {path.name: path for path in paths}

    def file(self, layer: int) -> Path:
        """The file of a layer, which may be absent."""
        if self.folder is None:
            raise PlanError(f"The files of the repair {self.record_id} were not looked up.")
        return self.folder / layer_file(layer)


@dataclass(frozen=True, repr=False)
class PruningPlan(BitsMixin, DisplayMixin):
    """The kept experts of each layer, and the kept neurons of experts."""

    model: ModelRef
    # Decoder index -> ids of the kept experts, ascending. A layer that is absent stays whole.
    kept: Mapping[int, tuple[int, ...]] = field(hash=False)
    provenance: Provenance = Provenance()
    granularity: str = EXPERT_GRANULARITY  # plans of neurons may remove whole experts too
    # Decoder index -> expert -> ids of its kept neurons, ascending; an expert that is absent keeps
    # all. Only in plans of neurons.
    kept_neurons: KeptNeurons = field(default_factory=dict, hash=False)
    repair: Repair | None = None  # of what stays
    # Name of the format that evaluations simulate for the experts' weights; empty: as they are.
    # Exports ignore it.
    bits: str = ""
    # The same for layers that differ: decoder index -> format; layers that are absent stay as they
    # are. Either this or `bits`.
    layer_bits: Mapping[int, str] = field(default_factory=dict, hash=False)
    # Decoder index -> experts per token; empty: as many as the model's routers select.
    top_k: TopK = field(default_factory=dict, hash=False)
    notes: tuple[str, ...] = field(default=(), compare=False)  # of its making, for people; no file

    def __post_init__(self) -> None:
        if self.granularity not in _GRANULARITIES:
            raise PlanError(
                f"The plan removes parts of kind {self.granularity!r}; this version handles "
                f"{' and '.join(map(repr, _GRANULARITIES))}."
            )
        if self.kept_neurons and self.granularity != NEURON_GRANULARITY:
            raise PlanError(
                "The plan names neurons in 'kept_neurons', but its granularity is "
                f"{self.granularity!r}; make it {NEURON_GRANULARITY!r}."
            )
        object.__setattr__(self, "top_k", MappingProxyType(ordered_top_k(self.top_k, self.kept)))
        object.__setattr__(self, "kept_neurons", ordered_neurons(self.kept_neurons))
        object.__setattr__(self, "layer_bits", ordered_layer_bits(self.layer_bits, self.bits))
        for layer, ids in self.kept.items():
            _check_ids(layer, ids)
        in_order = {layer: tuple(self.kept[layer]) for layer in sorted(self.kept)}
        object.__setattr__(self, "kept", MappingProxyType(in_order))

    @property
    def shown(self) -> Facts:
        """The facts that a console or a notebook shows."""
        made = self.provenance
        kept = [len(ids) for ids in self.kept.values()]
        return {
            "model": self.model.name,
            "criterion": made.criterion or "none",
            "corpora": " + ".join(made.corpora) or "none",
            "schedule": made.schedule or "none",
            "asked": made.amount or "none",
            "granularity": self.granularity,
            "experts_kept": f"{sum(kept)} in {len(kept)} layers",
            "repaired": self.repair is not None,
            "bits": self.named_bits or "as they are",
            "experts_per_token": self.per_token or "the model's own",
            "digest": self.digest[:8],
        }

    @property
    def per_token(self) -> str:
        """Experts per token as records have them: 3, or 4.3.3.2 by layer; empty: the model's."""
        return top_k_text(self.top_k)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of what decides the result: model, what is kept, repair, bits, top-k."""
        by_neuron = self.granularity == NEURON_GRANULARITY
        decides = {
            "model": self.model.identity,
            "granularity": digest_word(self.granularity),
            "kept": {str(layer): list(ids) for layer, ids in self.kept.items()},
            **({"kept_atoms": neurons_to_json(self.kept_neurons)} if by_neuron else {}),
            **({"repair": self.repair.digest} if self.repair else {}),
            **self.bits_to_json(),
            **self._top_k(),
        }
        return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()

    @property
    def cache_key(self) -> str:
        """The digest."""
        return self.digest

    @property
    def unrepaired(self) -> PruningPlan:
        """The same without its repair."""
        return replace(self, repair=None) if self.repair else self

    @property
    def in_own_bits(self) -> PruningPlan:
        """The same with weights as the checkpoint has them, as exports write it."""
        return replace(self, bits="", layer_bits={}) if self.named_bits else self

    @property
    def changes_weights(self) -> bool:
        """Whether experts that stay compute with weights that are not the model's."""
        return bool(self.named_bits or self.repair or self.kept_neurons)

    def of_layer(self, layer: int) -> PruningPlan:
        """What it does to one layer; all others stay whole."""
        return self.of_layers((layer,))

    def of_layers(self, layers: Container[int]) -> PruningPlan:
        """What it does to some layers; all others stay whole."""
        kept = {layer: ids for layer, ids in self.kept.items() if layer in layers}
        neurons = {layer: of for layer, of in self.kept_neurons.items() if layer in layers}
        bits = {layer: name for layer, name in self.layer_bits.items() if layer in layers}
        top_k = {layer: number for layer, number in self.top_k.items() if layer in layers}
        return replace(self, kept=kept, kept_neurons=neurons, layer_bits=bits, top_k=top_k)

    def _top_k(self) -> dict[str, Any]:
        """`top_k` as JSON; empty where routers select as many as the model's."""
        return {"top_k": top_k_to_json(self.top_k, self.kept)} if self.top_k else {}

    def _neurons(self) -> dict[str, Any]:
        """`kept_neurons` as JSON; empty in a plan of whole experts."""
        if self.granularity != NEURON_GRANULARITY:
            return {}
        return {"kept_neurons": neurons_to_json(self.kept_neurons)}

    def to_dict(self) -> dict[str, Any]:
        """The content of plan.json."""
        return {
            "schema_version": SCHEMA_VERSION,
            "model": asdict(self.model),
            "granularity": self.granularity,
            "kept": {str(layer): list(ids) for layer, ids in self.kept.items()},
            **self._neurons(),
            **{
                key: list(value) if isinstance(value, tuple) else value
                for key, value in asdict(self.provenance).items()
                if key not in ("spec", "rows", "tokens") or value
            },
            **({"repair": self.repair.to_dict()} if self.repair else {}),
            **self.bits_to_json(),
            **self._top_k(),
        }

    def to_json(self) -> str:
        """plan.json as text, one line per layer or expert; the same plan gives the same bytes."""
        raw = self.to_dict()
        neurons = neurons_text(raw["kept_neurons"]) if "kept_neurons" in raw else "{}"
        raw = {**raw, **({"kept_neurons": {}} if "kept_neurons" in raw else {})}
        kept = ",\n".join(f'    "{layer}": {json.dumps(ids)}' for layer, ids in raw["kept"].items())
        raw["kept"] = {}
        text = json.dumps(raw, indent=2, ensure_ascii=False)
        body = f"{{\n{kept}\n  }}" if kept else "{}"
        text = text.replace('\n  "kept": {}', f'\n  "kept": {body}', 1)
        return text.replace('\n  "kept_neurons": {}', f'\n  "kept_neurons": {neurons}', 1) + "\n"

    def save(self, path: str | Path) -> None:
        """Write plan.json at once: a reader sees the old file or the new one."""
        try:
            write_durably(Path(path), self.to_json().encode())
        except OSError as error:
            raise PlanError(f"The plan cannot be written to {path}: {error.strerror}.") from error


def _check_ids(layer: int, ids: Sequence[int]) -> None:
    if layer < 0:
        raise PlanError(f"The plan names layer {layer}; layers count from 0.")
    if not ids:
        raise PlanError(
            f"The plan keeps no expert in layer {layer}; list at least as many as its router picks "
            "per token, or leave the layer out to keep all."
        )
    repeated = sorted(expert for expert, times in Counter(ids).items() if times > 1)
    if repeated:
        raise PlanError(f"The plan lists expert {repeated[0]} of layer {layer} twice.")
    if min(ids) < 0:
        raise PlanError(f"The plan keeps expert {min(ids)} in layer {layer}; ids count from 0.")
    if list(ids) != sorted(ids):
        raise PlanError(f"The plan lists the experts of layer {layer} out of order.")


def fit_plan(plan: PruningPlan, model: MoEModel) -> PruningPlan:
    """The plan checked against its model, with absent layers filled in."""
    if plan.model.identity != model.identity:
        raise PlanError(
            f"The plan is for {plan.model.name} (identity {plan.model.identity[:8]}), not for "
            f"{model.name} (identity {model.identity[:8]}). Make a plan for {model.name}; if it is "
            f"a quantised copy, export it with --plan-model {plan.model.name}."
        )
    top_k = fit_top_k(plan.top_k, plan.kept, model)
    layers = {layer.index: layer for layer in model.layers}
    for index, ids in plan.kept.items():
        if index not in layers:
            raise PlanError(
                f"The plan names layer {index}, which has no routed experts in {model.name}; "
                f"its sparse layers are {ranges(layers)}."
            )
        layer = layers[index]
        if ids[-1] >= layer.num_experts:
            raise PlanError(
                f"The plan keeps expert {ids[-1]} in layer {index}, which has "
                f"{layer.num_experts} experts (0..{layer.num_experts - 1})."
            )
        check_kept(layer, ids)
    all_experts = {index: tuple(range(layer.num_experts)) for index, layer in layers.items()}
    kept = {**all_experts, **plan.kept}
    neurons = fit_neurons(plan.kept_neurons, kept, model)
    bits, layer_bits = fit_layer_bits(plan.bits, plan.layer_bits, layers)
    return replace(
        plan, kept=kept, kept_neurons=neurons, bits=bits, layer_bits=layer_bits, top_k=top_k
    )


def model_ref(model: MoEModel) -> ModelRef:
    """How plans refer to this model."""
    return ModelRef(model.name, model.identity)


def kept_by_layer(plan: PruningPlan, model: MoEModel) -> tuple[int, ...]:
    """Experts that stay in each layer under a complete plan; of a plan of neurons, these."""
    neurons = plan.kept_neurons if plan.granularity == NEURON_GRANULARITY else None
    return counts_by_layer(neurons, plan.kept, model)


def removes_nothing(plan: PruningPlan, model: MoEModel) -> bool:
    """Whether a complete plan keeps all experts and neurons; its export has the source's bytes."""
    return sum(map(len, plan.kept.values())) == model.num_experts and not plan.kept_neurons


def changes_nothing(plan: PruningPlan, model: MoEModel) -> bool:
    """Whether a complete plan also selects as many experts per token: it computes as the model."""
    return removes_nothing(plan, model) and not plan.top_k


def takes_repair(plan: PruningPlan, model: MoEModel) -> bool:
    """Whether a complete plan can be repaired: it changes something and is not repaired yet."""
    return plan.repair is None and not changes_nothing(plan, model)


def untied_embedding(model: MoEModel, plan: PruningPlan) -> TensorEntry | None:
    """The embedding that a file for engines holds again as the head, as they cannot tie the two.

    Such a file is the export of a plan that changes something, and any model in fewer bits.
    """
    is_source = changes_nothing(plan, model) and not plan.named_bits
    return None if is_source else model.tied_embedding


def with_top_k(plan: PruningPlan, model: MoEModel, top_k: int | None) -> PruningPlan:
    """The plan with this many experts per token in every layer; None leaves it as it is."""
    if top_k is None or (numbers := even_top_k(model, top_k)) == plan.top_k:
        return plan
    if plan.repair:
        raise PlanError(
            "The plan's repair was fitted with other experts per token; plan with --top-k, and "
            "repair that plan."
        )
    return replace(plan, top_k=numbers)


def keep_all(model: MoEModel) -> PruningPlan:
    """The plan that removes nothing."""
    kept = {layer.index: tuple(range(layer.num_experts)) for layer in model.layers}
    return PruningPlan(model_ref(model), kept, Provenance(tool_version=tool_version()))
