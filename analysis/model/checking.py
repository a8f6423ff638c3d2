"""Checks that a checkpoint holds every expert that it should."""

import re
from collections.abc import Sequence
from itertools import product

from analysis.errors import CheckpointError, UnsupportedModelError
from analysis.families.base import PER_LAYER_KEY, MoELayer, Slot, SlotKind
from analysis.model.moe_model import SCALES, LocatedTensor, MoEModel, is_expert_weight

# What names of experts have in common, in whatever layout.
_EXPERTS = re.compile(r".*((?<!shared_)experts?\b|switch_mlp).*")
# A part of such a name -> whose layout it is of, and what works instead.
_LAYOUTS = {
    ".switch_mlp.": ("MLX's", "prune the model that it was made from, and convert the export"),
    ".up_gate_proj.": ("Paddle's", "ERNIE is published for transformers under names with -PT"),
}


def _check_extents(layer: MoELayer, items: Sequence[LocatedTensor]) -> None:
    """Check that the tensors have as many experts as the configuration says."""
    last = max((item.slot.expert or 0 for item in items), default=0)
    if last >= layer.num_experts:
        raise CheckpointError(
            f"Layer {layer.index} holds an expert {last}, but config.json says "
            f"{layer.num_experts} experts (0..{layer.num_experts - 1})."
        )
    for entry, slot in ((item.entry, item.slot) for item in items):
        if slot.holds_ids:  # as many rows as there are tokens
            continue
        count = entry.shape[slot.axis] if slot.axis < len(entry.shape) else 0
        if slot.kind is not SlotKind.EXPERT and count != layer.num_experts:
            what = f"has {count} rows" if slot.kind is SlotKind.ROUTER else f"holds {count} experts"
            raise CheckpointError(
                f"{entry.name} {what}, but config.json says {layer.num_experts} experts."
            )


def check_layers(model: MoEModel) -> None:
    """Refuse a model that does not hold every expert that it should."""
    family = model.family
    names = (entry.name for entry in model.unlocated if model.quantisation)
    # Name of a quantised matrix outside of the experts -> that of its scales.
    scales = {f"{name.rpartition('.')[0]}.weight": name for name in names if SCALES.fullmatch(name)}
    for layer in model.layers:
        items = model.located.get(layer.index, ())
        experts = [item for item in items if item.slot.kind is not SlotKind.ROUTER]
        _check_extents(layer, experts)
        weights = [item.slot for item in experts if is_expert_weight(item.slot)]
        in_stacks = any(slot.kind is SlotKind.STACKED for slot in weights)
        if in_stacks or not family.projections:
            expected: set[tuple[int | None, str]] = {(None, part) for part in family.stacked}
        else:
            expected = set(product(range(layer.num_experts), family.projections))
        missing = sorted(expected - {(slot.expert, slot.projection) for slot in weights}, key=str)
        routers = [item for item in items if item.slot.kind is SlotKind.ROUTER]
        if missing:
            _check_count(layer, weights, routers)
            if not weights:
                _check_names(model, layer)
            expert, projection = missing[0]
            owner = "stacked" if expert is None else f"expert {expert}'s"
            raise CheckpointError(
                f"Layer {layer.index} lacks the {owner} {projection} projection ({len(missing)} "
                "such tensors missing); is a shard missing or an index out of date?"
            )
        if not any(item.slot.role == family.router_tensors[0].name for item in routers):
            raise _without_router(model, layer.index)
        # bitsandbytes leaves the name, and flattens the matrix if it packs 4 bits.
        for name, dtype in ((item.entry.name, item.entry.dtype) for item in routers):
            is_packed = dtype in ("U8", "I8")
            if is_packed or name in scales:
                raise _quantised_router(layer.index, name if is_packed else scales[name])
        _check_extents(layer, routers)


def _check_count(
    layer: MoELayer, weights: Sequence[Slot], routers: Sequence[LocatedTensor]
) -> None:
    """Refuse a layer whose experts and router agree on another number than config.json's."""
    ids = {slot.expert for slot in weights}
    rows = {item.entry.shape[0] for item in routers if item.slot.role.endswith(".weight")}
    if len(ids) != layer.num_experts and rows == {len(ids)} and ids == set(range(len(ids))):
        raise CheckpointError(
            f"Layer {layer.index} holds {len(ids)} experts and its router a row for each, but "
            f"config.json says {layer.num_experts}; correct that number, or, where layers differ, "
            f"add {PER_LAYER_KEY}, a list of every layer's (0 for a dense one)."
        )


def _check_names(model: MoEModel, layer: MoELayer) -> None:
    """Refuse a layer whose experts have other names than in transformers, if they are there.

    By a tensor of the layer that is of experts by its name, or by any if there is no layer as in
    transformers.
    """
    trunks, names = model.family.trunks, [entry.name for entry in model.unlocated]
    has_trunk = any(name.startswith(tuple(f"{trunk}." for trunk in trunks)) for name in names)
    prefixes = tuple(f"{trunk}.{layer.index}." for trunk in trunks) if has_trunk else ("",)
    of_experts = (name for name in names if name.startswith(prefixes) and _EXPERTS.match(name))
    if name := next(of_experts, "" if has_trunk else next(iter(names), "")):
        hints = (hint for part, hint in _LAYOUTS.items() if part in name)
        owner, remedy = next(hints, ("another", "use the checkpoint published for transformers"))
        raise UnsupportedModelError(
            f"The experts of layer {layer.index} are not named as in transformers' "
            f"{model.family.label}: the checkpoint has {name}, which is {owner} layout; {remedy}, "
            "or convert the checkpoint to the names and shapes of transformers."
        )


def _without_router(model: MoEModel, layer: int) -> CheckpointError | UnsupportedModelError:
    names = (
        entry.name
        for entry in model.unlocated
        if ".experts." not in entry.name and model.family.routed_layer(entry.name) == layer
    )
    if model.quantisation and (name := next(names, "")):
        return _quantised_router(layer, name)
    return CheckpointError(f"Layer {layer} has no router tensor.")


def _quantised_router(layer: int, name: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"The router of layer {layer} is quantised ({name}), and no expert's part can be cut out "
        "of packed rows; use a checkpoint that leaves routers out of the quantisation."
    )
