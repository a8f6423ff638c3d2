"""Widths of experts: how many neurons each one has, from headers alone.

Neuron j of an expert is row j of gate and up, column j of down, and entry j of their biases.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING

from analysis.errors import CheckpointError
from analysis.families.base import WIDTHS_KEY, MoEFamily, Slot, SlotKind, any_of
from analysis.families.rules import check_per_layer, whole_number
from analysis.model.moe_model import MoEModel, is_expert_weight

if TYPE_CHECKING:
    from analysis.checkpoint.index import TensorEntry

SCALE_ROLE = "weight_scale_inv"  # of an FP8 matrix: one number for each block of its weights


@dataclass(frozen=True, slots=True)
class NeuronAxis:
    """Where a tensor of experts has its neurons."""

    axis: int  # in a stacked tensor axis 0 is the experts
    parts: int = 1  # projections that share the axis: 2 if gate and up are in one tensor
    interleaved: bool = False  # whether they alternate along it


def neuron_axis(family: MoEFamily, slot: Slot) -> NeuronAxis | None:
    """Where a weight or bias of experts has its neurons; None for the bias of an output."""
    first = int(slot.kind is SlotKind.STACKED)
    parts = 2 if slot.projection == "gate_up" else 1
    interleaved = parts == 2 and family.is_interleaved
    if slot.role == "bias":
        return None if slot.projection == "down" else NeuronAxis(first, parts, interleaved)
    # Only stacked matrices may be transposed: (experts, in, out).
    is_transposed = family.is_transposed and slot.kind is SlotKind.STACKED
    is_last = (slot.projection == "down") != is_transposed
    return NeuronAxis(first + is_last, parts, interleaved)


@lru_cache(maxsize=4)  # the dashboard reports sizes at each edit
def expert_widths(model: MoEModel) -> Mapping[int, tuple[int, ...]]:
    """By layer, the number of neurons of each expert, by id."""
    widths: dict[int, tuple[int, ...]] = {}
    for layer in model.layers:
        width_of: dict[int, int] = {}
        for item in model.located[layer.index]:
            if not is_expert_weight(item.slot) or item.slot.role != "weight":
                continue
            if model.num_weights(item.entry) != item.entry.numel:  # several in an element
                continue
            where = neuron_axis(model.family, item.slot)
            if where is None or where.axis >= len(item.entry.shape):
                raise CheckpointError(
                    f"{item.entry.name} of shape {item.entry.shape} is not a matrix."
                )
            width = item.entry.shape[where.axis] // where.parts
            ids = range(layer.num_experts) if item.slot.expert is None else (item.slot.expert,)
            for expert in ids:
                if width_of.setdefault(expert, width) != width:
                    raise CheckpointError(
                        f"{item.entry.name} is for {width} neurons, but other projections of "
                        f"expert {expert} in layer {layer.index} for {width_of[expert]}."
                    )
        widths[layer.index] = tuple(width_of[expert] for expert in sorted(width_of))
    return MappingProxyType(widths)


def computed_widths(model: MoEModel) -> Mapping[int, tuple[int, ...]]:
    """As `expert_widths`, but of packed experts, whose shapes do not tell, as config.json says."""
    widths = dict(expert_widths(model))
    for layer in model.layers:
        if not widths[layer.index]:
            width = whole_number(model.config, model.family.width_key)
            widths[layer.index] = (width,) * layer.num_experts
    return widths


def loaded_widths(model: MoEModel) -> dict[int, int] | None:
    """The width that each sparse layer is built with; None if all have the same."""
    limits = model.config.get(WIDTHS_KEY)
    if limits is None:
        return None
    check_per_layer(limits, WIDTHS_KEY, model.depth, [layer.index for layer in model.layers])
    for layer, widths in expert_widths(model).items():
        if max(widths, default=0) > limits[layer]:
            raise CheckpointError(
                f"config.json gives {WIDTHS_KEY}[{layer}] = {limits[layer]}, but an expert of that "
                f"layer has {max(widths)} neurons."
            )
    return {layer.index: limits[layer.index] for layer in model.layers}


def is_stacked(model: MoEModel) -> bool:
    """Whether all experts of a layer are stored in one tensor."""
    return any(
        item.slot.kind is SlotKind.STACKED
        for layer in model.layers
        for item in model.located[layer.index]
    )


def scale_blocks(model: MoEModel) -> tuple[int, int] | None:
    """Rows and columns of an expert's matrix that share an FP8 scale; None if there are none.

    Also None if unknown: for experts stacked on disk, or without a block size in config.json.
    """
    if SCALE_ROLE not in _roles(model) or is_stacked(model):
        return None
    return model.stated_block


def quantised_role(model: MoEModel) -> str:
    """A role of expert tensors, such as a scale, that neurons cannot be cut from; or empty."""
    plain = {"weight", "bias"} | ({SCALE_ROLE} if scale_blocks(model) else set())
    return min(_roles(model) - plain, default="")


@lru_cache(maxsize=8)
def _roles(model: MoEModel) -> frozenset[str]:
    items = (item for layer in model.layers for item in model.located[layer.index])
    return frozenset(item.slot.role for item in items if item.slot.kind is not SlotKind.ROUTER)


def shared_tensors(model: MoEModel) -> Mapping[str, tuple[TensorEntry, int]]:
    """Tensors of shared experts whose width the configuration ties to that of the routed ones.

    Name -> (entry, axis of the width); empty for families without such experts.
    """
    shared = model.family.shared
    if shared is None or shared.width_key != model.family.width_key:
        return {}
    sparse, family = {layer.index for layer in model.layers}, model.family
    blocks = any_of({family.disk_block, family.module_block})
    modules = any_of({shared.on_disk, "shared_experts"})
    pattern = re.compile(
        rf"(?:{any_of(family.trunks)})\.(\d+)\.(?:{blocks})\.(?:{modules})"
        # transformers also renames the gates of MLPs where it renames one of attention (Hy4).
        r"\.(gate_proj|linear_gate|up_proj|gate_up_proj|down_proj)\.(?:weight|bias)"
    )
    tensors: dict[str, tuple[TensorEntry, int]] = {}
    for name, entry in model.checkpoint.tensors.items():
        match = pattern.fullmatch(name)
        if match and int(match[1]) in sparse:
            # As transformers saves those of MiniMax-M3, which builds them from a key of their own.
            if match[2] == "gate_up_proj":
                return {}
            is_last = match[2] == "down_proj" and len(entry.shape) > 1
            if match[2] != "down_proj" or is_last:  # the bias of an output has no such axis
                tensors[name] = (entry, int(is_last))
    return tensors
