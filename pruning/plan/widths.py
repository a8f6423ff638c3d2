"""Widths of experts in an export, on disk and when loaded.

transformers computes all experts of a layer with one width. Narrower ones are padded with neurons
that are all zero: they add exactly nothing, so every mode computes what the plan says. Padding with
the next-best neurons would write a model that the plan does not describe; to keep those, put them
into the plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from analysis.errors import PlanError
from analysis.families.base import WIDTHS_KEY
from analysis.families.rules import whole_number
from analysis.model.widths import (
    expert_widths,
    is_stacked,
    loaded_widths,
    quantised_role,
    shared_tensors,
)
from pruning.plan.kept import KeptNeurons, kept_ids
from pruning.plan.plan import NEURON_GRANULARITY, PruningPlan

if TYPE_CHECKING:
    from analysis.model.moe_model import MoEModel

DEFAULT_MULTIPLE = 8  # 16 bytes of bfloat16, which grouped matrix products need


class WidthMode(StrEnum):
    """How an export stores experts that lost different numbers of neurons."""

    UNIFORM = "uniform"  # one width for the whole model; every engine reads it
    PER_LAYER = "per-layer"  # one width per layer
    RAGGED = "ragged"  # one width per expert on disk, one per layer when loaded


@dataclass(frozen=True, slots=True)
class WidthChoice:
    """How to store widths."""

    mode: WidthMode = WidthMode.UNIFORM
    # Loaded widths are rounded up to a multiple of this, but never above the original width.
    multiple_of: int = DEFAULT_MULTIPLE

    def __post_init__(self) -> None:
        if self.multiple_of < 1:
            raise PlanError(f"Widths cannot be multiples of {self.multiple_of}; give 1 or more.")

    @property
    def cache_key(self) -> str:
        """All of it."""
        return repr(self)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON."""
        return {"mode": str(self.mode), "multiple_of": self.multiple_of}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> WidthChoice:
        """Inverse of `to_json`."""
        return cls(WidthMode(raw["mode"]), int(raw["multiple_of"]))


@dataclass(frozen=True)
class WidthPlan:
    """The widths of an export."""

    choice: WidthChoice
    neurons: KeptNeurons = field(hash=False)  # neurons that stay in experts that lose some
    source: Mapping[int, tuple[int, ...]] = field(hash=False)  # layer -> width of every expert
    loaded: Mapping[int, int] = field(hash=False)  # sparse layer -> width it is built with
    scalar: int  # the configuration's one width; only mode `uniform` changes it
    # Number of shared experts if their width is tied to that of the routed ones; None: unchanged.
    shared: int | None = None

    def kept(self, layer: int, expert: int) -> tuple[int, ...] | range:
        """Neurons that an expert keeps."""
        return kept_ids(self.neurons, layer, expert, self.source[layer][expert])

    def stored_width(self, layer: int, expert: int) -> int:
        """Width of an expert on disk."""
        if self.choice.mode is WidthMode.RAGGED:
            return len(self.kept(layer, expert))
        return self.loaded[layer]


def plan_widths(
    model: MoEModel, plan: PruningPlan, choice: WidthChoice | None = None
) -> WidthPlan | None:
    """The widths of an export; None for a plan of whole experts, which changes no width.

    The plan is complete, see `fit_plan`; the default is one width for the whole model.
    """
    if plan.granularity != NEURON_GRANULARITY:
        if choice is not None:
            raise PlanError(
                "A width mode is for plans that remove neurons, but this plan removes whole "
                "experts only; leave it out."
            )
        return None
    if not plan.kept_neurons and quantised_role(model):
        return None  # quantised shapes do not give the width
    choice = choice or WidthChoice()
    source = expert_widths(model)
    needed = {
        layer: max(len(kept_ids(plan.kept_neurons, layer, e, source[layer][e])) for e in ids)
        for layer, ids in plan.kept.items()
    }
    loaded = loaded_as(model, needed, choice)
    return WidthPlan(choice, plan.kept_neurons, source, loaded.widths, loaded.scalar, loaded.shared)


@dataclass(frozen=True)
class LoadedWidths:
    """Widths with which an export is loaded; see `WidthPlan` for `scalar` and `shared`."""

    widths: Mapping[int, int] = field(hash=False)
    scalar: int
    shared: int | None = None


def loaded_as(model: MoEModel, needed: Mapping[int, int], choice: WidthChoice) -> LoadedWidths:
    """The loaded widths, given the neurons of the widest expert of each layer."""
    most = loaded_widths(model) or {
        layer: max(widths) for layer, widths in expert_widths(model).items()
    }
    scalar = whole_number(model.config, model.family.width_key)
    if choice.mode is WidthMode.RAGGED and is_stacked(model):
        raise PlanError(
            f"The experts of {model.name} lie stacked in one tensor a layer, so they cannot have "
            "widths of their own on disk; use the width mode per-layer or uniform."
        )
    if choice.mode is WidthMode.UNIFORM:
        width = _round_up(max(needed.values()), choice.multiple_of, max(most.values()))
        shared = _shared_count(model, width) if width != scalar else None
        _check_shapes(model, {width})
        return LoadedWidths(dict.fromkeys(needed, width), width, shared)
    loaded = {
        layer: _round_up(width, choice.multiple_of, most[layer]) for layer, width in needed.items()
    }
    _check_shapes(model, {*loaded.values()})
    return LoadedWidths(loaded, scalar)


def _check_shapes(model: MoEModel, widths: Set[int]) -> None:
    """Refuse square matrices where transformers tells by shapes which way experts lie."""
    square = {model.hidden_size, model.hidden_size // 2} & widths
    if model.family.may_be_transposed and model.family.is_transposed and square:
        raise PlanError(
            f"Experts of {max(square)} neurons would make square matrices at a hidden size of "
            f"{model.hidden_size}, and transformers could not tell which way those of "
            f"{model.family.label} lie; choose another --width-multiple-of."
        )


def _round_up(width: int, multiple: int, most: int) -> int:
    """The next multiple, at least one, but at most the original width."""
    return min(max(1, -(-width // multiple)) * multiple, most)


def _shared_count(model: MoEModel, width: int) -> int | None:
    """Number of shared experts that hold all shared neurons at the new width."""
    family, instead = model.family, "use the width mode per-layer or ragged, and load_pruned"
    if family.discovered:
        raise PlanError(
            f"What else of a {family.model_type} model is built with {family.width_key} is not "
            f"known, because it was discovered; {instead}."
        )
    if family.width_shared_with and family.is_width_shared(model.config):
        raise PlanError(
            f"In {family.label} models {family.width_key} is also the width of "
            f"{family.width_shared_with}, so it cannot change for the experts alone; {instead}."
        )
    widths = {entry.shape[axis] for entry, axis in shared_tensors(model).values()}
    return -(-max(widths) // width) if widths else None


def widths_config(widths: WidthPlan, model: MoEModel) -> dict[str, Any]:
    """Changed keys of the text model's configuration; None removes a key."""
    family, config = model.family, model.config
    changes: dict[str, Any] = {}
    if WIDTHS_KEY in config:
        changes[WIDTHS_KEY] = None
    if widths.choice.mode is WidthMode.UNIFORM:
        if config[family.width_key] != widths.scalar:
            changes[family.width_key] = widths.scalar
        if widths.shared is not None and family.shared is not None:
            changes[family.shared.count_key] = widths.shared
            if config.get(family.shared.each_key) is not None:
                changes[family.shared.each_key] = widths.scalar
            if config.get(family.shared.total_key) is not None:
                changes[family.shared.total_key] = widths.shared * widths.scalar
        return changes
    alike = all(
        widths.stored_width(layer, expert) == widths.scalar
        for layer, layer_widths in widths.source.items()
        for expert in range(len(layer_widths))
    )
    if not alike:
        changes[WIDTHS_KEY] = [widths.loaded.get(layer, 0) for layer in range(model.depth)]
    return changes
