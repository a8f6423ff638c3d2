"""Widths of the experts that an export writes, and of those that a loaded model has.

transformers computes the experts of a layer with one width. What has fewer neurons is filled up
with neurons that are all zero: they add exactly nothing, so every mode computes what the plan says.
Filling up with the next-best neurons instead would write a model that the plan does not describe;
whoever wants those keeps them in the plan, see `Contest`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from analysis.errors import PlanError
from analysis.families.base import WIDTHS_KEY
from analysis.families.rules import whole_number
from analysis.model import MoEModel
from analysis.widths import expert_widths, is_stacked, loaded_widths, quantised_role, shared_tensors
from pruning.atoms.kept import KeptAtoms, atoms_of
from pruning.plan import ATOMIC_GRANULARITY, PruningPlan

DEFAULT_MULTIPLE = 8  # 16 bytes of bfloat16, which grouped matrix products need


class WidthMode(StrEnum):
    """How an export stores experts that have lost different numbers of neurons."""

    UNIFORM = "uniform"  # one width for the whole model; every reader takes it
    PER_LAYER = "per-layer"  # one width a layer
    RAGGED = "ragged"  # each expert its own on disk, one width a layer when loaded


@dataclass(frozen=True, slots=True)
class WidthChoice:
    """How widths are to be stored."""

    mode: WidthMode = WidthMode.UNIFORM
    # Widths of loaded experts are rounded up to a multiple of this, but never above the width that
    # they had.
    multiple_of: int = DEFAULT_MULTIPLE

    def __post_init__(self) -> None:
        if self.multiple_of < 1:
            raise PlanError(f"Widths cannot be multiples of {self.multiple_of}; give 1 or more.")

    def to_json(self) -> dict[str, Any]:
        """Plain JSON."""
        return {"mode": str(self.mode), "multiple_of": self.multiple_of}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> "WidthChoice":
        """Inverse of `to_json`."""
        return cls(WidthMode(raw["mode"]), int(raw["multiple_of"]))


@dataclass(frozen=True)
class WidthPlan:
    """The widths of an export."""

    choice: WidthChoice  # how they are stored
    atoms: KeptAtoms = field(hash=False)  # neurons that stay of the experts that lose some
    # Width of every expert of the source, by layer.
    source: Mapping[int, tuple[int, ...]] = field(hash=False)
    loaded: Mapping[int, int] = field(hash=False)  # width that each sparse layer is built with
    scalar: int  # the configuration's one width; changed in the mode `uniform` only
    # Number of shared experts where their width is tied to the routed ones' and changes with it;
    # None where it stays.
    shared: int | None = None

    def kept(self, layer: int, expert: int) -> tuple[int, ...] | range:
        """Neurons of an expert that stay."""
        return atoms_of(self.atoms, layer, expert, self.source[layer][expert])

    def written(self, layer: int, expert: int) -> int:
        """Width of an expert on disk."""
        if self.choice.mode is WidthMode.RAGGED:
            return len(self.kept(layer, expert))
        return self.loaded[layer]


def plan_widths(
    model: MoEModel, plan: PruningPlan, choice: WidthChoice | None = None
) -> WidthPlan | None:
    """The widths of an export; None for a plan of whole experts, which changes no width.

    The plan is complete, see `fit_plan`; by default there is one width for the whole model.
    """
    if plan.granularity != ATOMIC_GRANULARITY:
        if choice is not None:
            raise PlanError(
                "A width mode is for plans that remove neurons, but this plan removes whole "
                "experts only; leave it out."
            )
        return None
    if not plan.kept_atoms and quantised_role(model):
        return None  # whose shapes do not say how wide experts are
    choice = choice or WidthChoice()
    source = expert_widths(model)
    needed = {
        layer: max(len(atoms_of(plan.kept_atoms, layer, e, source[layer][e])) for e in ids)
        for layer, ids in plan.kept.items()
    }
    loaded = loaded_as(model, needed, choice)
    return WidthPlan(choice, plan.kept_atoms, source, loaded.widths, loaded.scalar, loaded.shared)


@dataclass(frozen=True)
class LoadedWidths:
    """Widths that an export is built with; see `WidthPlan` for `scalar` and `shared`."""

    widths: Mapping[int, int] = field(hash=False)
    scalar: int
    shared: int | None = None


def loaded_as(model: MoEModel, needed: Mapping[int, int], choice: WidthChoice) -> LoadedWidths:
    """The widths of loaded experts that hold what is needed: of the widest of each layer."""
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
        width = _rounded(max(needed.values()), choice.multiple_of, max(most.values()))
        shared = _shared_count(model, width) if width != scalar else None
        return LoadedWidths(dict.fromkeys(needed, width), width, shared)
    loaded = {
        layer: _rounded(width, choice.multiple_of, most[layer]) for layer, width in needed.items()
    }
    return LoadedWidths(loaded, scalar)


def _rounded(width: int, multiple: int, most: int) -> int:
    """The next multiple, at least one; the width as it was, if that is less."""
    return min(max(1, -(-width // multiple)) * multiple, most)


def _shared_count(model: MoEModel, width: int) -> int | None:
    """Number of shared experts that holds their neurons, at a new width of each."""
    family, instead = model.family, "use the width mode per-layer or ragged, and load_pruned"
    if family.discovered:
        raise PlanError(
            f"What else of a {family.model_type} model is built with {family.width_key} is not "
            f"known, because it was discovered; {instead}."
        )
    if family.width_shared_with:
        raise PlanError(
            f"In {family.label} models {family.width_key} is also the width of "
            f"{family.width_shared_with}, so it cannot change for the experts alone; {instead}."
        )
    found = shared_tensors(model).values()
    widths = {entry.shape[axis] for entry, axis in found}
    return -(-max(widths) // width) if widths else None


def widths_config(widths: WidthPlan, model: MoEModel) -> dict[str, Any]:
    """Keys of the text model's configuration that change, with their values; None removes one."""
    family, config = model.family, model.config
    changes: dict[str, Any] = {}
    if WIDTHS_KEY in config:
        changes[WIDTHS_KEY] = None
    if widths.choice.mode is WidthMode.UNIFORM:
        if config[family.width_key] != widths.scalar:
            changes[family.width_key] = widths.scalar
        if widths.shared is not None and family.shared is not None:
            changes[family.shared.count_key] = widths.shared
        return changes
    alike = all(
        widths.written(layer, expert) == widths.scalar
        for layer, held in widths.source.items()
        for expert in range(len(held))
    )
    if not alike:
        changes[WIDTHS_KEY] = [widths.loaded.get(layer, 0) for layer in range(model.depth)]
    return changes
