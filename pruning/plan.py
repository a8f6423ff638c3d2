"""PruningPlan: which experts stay, why, and of which model. Reads and writes plan.json."""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pandas as pd

from analysis.errors import PlanError
from analysis.model import MoEModel
from pruning.allocation import Allocation, too_few_kept

SCHEMA_VERSION = 1
EXPERT_GRANULARITY = "expert"


def tool_version() -> str:
    """Version of this program, as installed."""
    return version("moe-prune-studio")


@dataclass(frozen=True, slots=True)
class ModelRef:
    """Which model a plan is for.

    Args:
        name: the directory's name, or the hub id; for people.
        identity: see `Checkpoint.identity`; decides.
    """

    name: str
    identity: str


@dataclass(frozen=True, slots=True)
class Provenance:
    """How a plan came about; no part of its digest.

    Args:
        criterion: name or `b,alpha,beta`.
        gate: `applied` or `renormalized`; empty where the criterion uses no gate weight.
        corpora: names of the calibration corpora.
        runs: ids of the calibration runs.
        schedule: name of the schedule.
        sparsity: fraction removed, as it was asked for.
        tool_version: version of the program that made the plan.
    """

    criterion: str = ""
    gate: str = ""
    corpora: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()
    schedule: str = ""
    sparsity: str = ""
    tool_version: str = ""


@dataclass(frozen=True)
class PruningPlan:
    """The experts that stay, by layer.

    Args:
        model: the model that it is for.
        kept: decoder index -> ids of the experts that stay, ascending. A layer that is absent
            stays whole.
        provenance: how it came about.
        granularity: what is removed; only whole experts so far.

    Raises:
        PlanError: a layer without experts, or ids that repeat, are negative or out of order.
    """

    model: ModelRef
    kept: Mapping[int, tuple[int, ...]] = field(hash=False)
    provenance: Provenance = Provenance()
    granularity: str = EXPERT_GRANULARITY

    def __post_init__(self) -> None:
        if self.granularity != EXPERT_GRANULARITY:
            raise PlanError(
                f"The plan removes parts of kind {self.granularity!r}; this version handles "
                f"{EXPERT_GRANULARITY!r} only."
            )
        for layer, ids in self.kept.items():
            _check_ids(layer, ids)
        in_order = {layer: tuple(self.kept[layer]) for layer in sorted(self.kept)}
        object.__setattr__(self, "kept", MappingProxyType(in_order))

    @property
    def digest(self) -> str:
        """SHA-256 of what decides the result: model identity, granularity, kept experts."""
        decides = {
            "model": self.model.identity,
            "granularity": self.granularity,
            "kept": {str(layer): list(ids) for layer, ids in self.kept.items()},
        }
        return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()

    def to_dict(self) -> dict[str, Any]:
        """The content of plan.json."""
        return {
            "schema_version": SCHEMA_VERSION,
            "model": asdict(self.model),
            "granularity": self.granularity,
            "kept": {str(layer): list(ids) for layer, ids in self.kept.items()},
            **{
                key: list(value) if isinstance(value, tuple) else value
                for key, value in asdict(self.provenance).items()
            },
        }

    def to_json(self) -> str:
        """plan.json as text: the same plan gives the same bytes. One line for each layer."""
        raw = self.to_dict()
        kept = ",\n".join(f'    "{layer}": {json.dumps(ids)}' for layer, ids in raw["kept"].items())
        raw["kept"] = {}
        whole = json.dumps(raw, indent=2, ensure_ascii=False)
        body = f"{{\n{kept}\n  }}" if kept else "{}"
        return whole.replace('\n  "kept": {}', f'\n  "kept": {body}', 1) + "\n"


def _check_ids(layer: int, ids: Sequence[int]) -> None:
    if layer < 0:
        raise PlanError(f"The plan names layer {layer}; layers count from 0.")
    if not ids:
        raise PlanError(f"The plan keeps no expert in layer {layer}.")
    repeated = sorted({expert for expert in ids if list(ids).count(expert) > 1})
    if repeated:
        raise PlanError(f"The plan lists expert {repeated[0]} of layer {layer} twice.")
    if min(ids) < 0:
        raise PlanError(f"The plan keeps expert {min(ids)} in layer {layer}; ids count from 0.")
    if list(ids) != sorted(ids):
        raise PlanError(f"The plan lists the experts of layer {layer} out of order.")


def fit_plan(plan: PruningPlan, model: MoEModel) -> PruningPlan:
    """The plan with layers that were absent written out, checked against its model.

    Raises:
        PlanError: another model, an unknown layer or expert, or fewer than top_k experts.
    """
    if plan.model.identity != model.identity:
        raise PlanError(
            f"The plan was made for {plan.model.name} (identity {plan.model.identity[:8]}), not "
            f"for {model.name} (identity {model.identity[:8]}); make a plan for this model."
        )
    layers = {layer.index: layer for layer in model.layers}
    for index, ids in plan.kept.items():
        if index not in layers:
            raise PlanError(
                f"The plan names layer {index}, which has no routed experts in {model.name}; "
                f"its sparse layers are {_spans(list(layers))}."
            )
        layer = layers[index]
        if ids[-1] >= layer.num_experts:
            raise PlanError(
                f"The plan keeps expert {ids[-1]} in layer {index}, which has "
                f"{layer.num_experts} experts (0..{layer.num_experts - 1})."
            )
        if len(ids) < layer.top_k:
            raise PlanError(too_few_kept(layer, len(ids)))
    whole = {index: tuple(range(layer.num_experts)) for index, layer in layers.items()}
    return replace(plan, kept={**whole, **plan.kept})


def _spans(numbers: Sequence[int]) -> str:
    """Ascending integers in short: 1..3, 5."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and parts[-1][-1] == number - 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(f"{p[0]}..{p[-1]}" if len(p) > 1 else str(p[0]) for p in parts)


def model_ref(model: MoEModel) -> ModelRef:
    """The reference that a plan for this model carries."""
    return ModelRef(model.name, model.identity)


def keep_all(model: MoEModel) -> PruningPlan:
    """The plan that removes nothing."""
    kept = {layer.index: tuple(range(layer.num_experts)) for layer in model.layers}
    return PruningPlan(model_ref(model), kept, Provenance(tool_version=tool_version()))


def select_experts(
    ranking: pd.DataFrame,
    allocation: Allocation,
    *,
    model: ModelRef,
    provenance: Provenance | None = None,
) -> PruningPlan:
    """Keep the first experts of each layer's ranking.

    Args:
        ranking: columns layer, expert, score, saliency, rank, num_tokens; rank 0 is the first to
            keep within its layer. Layers outside the allocation are ignored.
        allocation: how many each layer keeps.
        model: the model that was ranked.
        provenance: how the ranking was made; by default only the tool's version.

    Raises:
        PlanError: the ranking does not rank each expert of an allocated layer exactly once.
    """
    by_layer = {int(str(layer)): rows for layer, rows in ranking.groupby("layer")}
    kept: dict[int, tuple[int, ...]] = {}
    for layer, keep in zip(allocation.layers, allocation.keep, strict=True):
        rows = by_layer.get(layer.index)
        ids = [] if rows is None else rows["expert"].tolist()
        if sorted(ids) != list(range(layer.num_experts)):
            raise PlanError(
                f"The ranking holds {len(ids)} experts of layer {layer.index}, but it should "
                f"rank each of its {layer.num_experts} experts once."
            )
        ranks = rows["rank"].tolist() if rows is not None else []
        if len(set(ranks)) != len(ranks) or any(rank != rank for rank in ranks):
            raise PlanError(f"The ranking of layer {layer.index} has equal or missing ranks.")
        order = sorted(zip(ranks, ids, strict=True))
        kept[layer.index] = tuple(sorted(int(expert) for _, expert in order[:keep]))
    return PruningPlan(model, kept, provenance or Provenance(tool_version=tool_version()))


def plan_from_dict(raw: object) -> PruningPlan:
    """The plan in parsed JSON.

    Raises:
        PlanError: a key is missing, of the wrong kind, or of a newer schema.
    """
    if not isinstance(raw, dict):
        raise PlanError("The plan is not a JSON object.")
    schema = raw.get("schema_version")
    if schema != SCHEMA_VERSION:
        raise PlanError(
            f"The plan has schema_version {schema!r}, but this version reads {SCHEMA_VERSION}; "
            "make the plan again with `moeprune plan`."
        )
    granularity = raw.get("granularity", EXPERT_GRANULARITY)
    if granularity == EXPERT_GRANULARITY and "kept" not in raw:
        raise PlanError("The plan has no 'kept': layer -> ids of the experts that stay.")
    try:
        model = ModelRef(str(raw["model"]["name"]), str(raw["model"]["identity"]))
        kept = {_layer(key): _ids(key, ids) for key, ids in raw.get("kept", {}).items()}
        provenance = _provenance(raw)
    except (KeyError, TypeError, AttributeError) as error:
        raise PlanError(f"The plan is malformed at {error}.") from error
    return PruningPlan(model, kept, provenance, granularity)


def _layer(key: str) -> int:
    if not (key.isascii() and key.isdigit()):
        raise PlanError(f"The plan names layer {key!r}, which is not a decoder index.")
    return int(key)


def _ids(layer: str, ids: object) -> tuple[int, ...]:
    if not isinstance(ids, list) or any(type(expert) is not int for expert in ids):
        raise PlanError(f"The plan's experts of layer {layer} are not a list of integers.")
    return tuple(sorted(ids))


def _provenance(raw: Mapping[str, Any]) -> Provenance:
    texts = ("criterion", "gate", "schedule", "sparsity", "tool_version")
    lists = {key: raw.get(key, []) for key in ("corpora", "runs")}
    for key, value in lists.items():
        if not isinstance(value, list):
            raise PlanError(f"The plan's {key!r} is not a list.")
    return Provenance(
        **{key: str(raw.get(key, "")) for key in texts},
        corpora=tuple(map(str, lists["corpora"])),
        runs=tuple(map(str, lists["runs"])),
    )


def plan_from_json(text: str | bytes) -> PruningPlan:
    """The plan in the text of a plan.json.

    Raises:
        PlanError: not valid JSON, or not a plan.
    """
    try:
        raw = json.loads(text)
    except ValueError as error:
        raise PlanError(f"The plan is not valid JSON: {error}.") from error
    return plan_from_dict(raw)


def load_plan(path: Path, *, model: MoEModel | None = None) -> PruningPlan:
    """Read plan.json; with `model`, also check and complete it for that model.

    Raises:
        PlanError: missing, unreadable, malformed, or not for this model.
    """
    try:
        text = path.read_bytes()
    except OSError as error:
        raise PlanError(f"The plan {path} cannot be read: {error.strerror}.") from error
    plan = plan_from_json(text)
    return plan if model is None else fit_plan(plan, model)


def save_plan(plan: PruningPlan, path: Path) -> None:
    """Write plan.json; a reader sees the old file or the new one, never a part.

    Raises:
        PlanError: the file cannot be written.
    """
    partial = path.with_name(path.name + ".partial")
    try:
        with partial.open("w", encoding="utf-8") as file:
            file.write(plan.to_json())
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise PlanError(f"The plan cannot be written to {path}: {error.strerror}.") from error
