"""Tensors whose experts have other widths in an export, and their FP8 scales. Nothing is read."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analysis.checkpoint.index import TensorEntry
from analysis.errors import ExportError
from analysis.families.base import MoEFamily, Slot, SlotKind
from analysis.model.moe_model import MoEModel
from analysis.model.widths import NeuronAxis, neuron_axis, scale_blocks, shared_tensors
from pruning.plan.layer_words import ranges
from pruning.plan.widths import WidthMode, WidthPlan
from pruning.surgery.pieces import Gather, Piece, item_bytes


@dataclass(frozen=True, slots=True)
class ResizedTensor:
    """A tensor's shape and bytes in the export."""

    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]


def resized_experts(
    entry: TensorEntry, slot: Slot, kept: Sequence[int], family: MoEFamily, widths: WidthPlan
) -> ResizedTensor | None:
    """A tensor of experts with its kept neurons, padded with zeros; None if unchanged.

    The tensor lies at `slot` in the source; `kept` are the kept experts of its layer.
    """
    where = neuron_axis(family, slot) if slot.kind is not SlotKind.ROUTER else None
    if where is None:
        return None
    experts = kept if slot.expert is None else (slot.expert,)
    indices = [_index(where, slot.layer, expert, widths) for expert in experts]
    if all(index is None for index in indices):
        return None
    inner = entry.shape[1:] if slot.expert is None else entry.shape
    axis = where.axis - (len(entry.shape) - len(inner))
    width = where.parts * widths.stored_width(slot.layer, experts[0])
    rows, count = math.prod(inner[:axis]), inner[axis]
    size = math.prod(inner[axis + 1 :]) * item_bytes(entry.dtype)
    pieces = tuple(
        Gather(
            entry.start + (expert if slot.expert is None else 0) * rows * count * size,
            rows,
            count,
            size,
            np.arange(width, dtype=np.int32) if index is None else index,
        )
        for expert, index in zip(experts, indices, strict=True)
    )
    shape = (*inner[:axis], width, *inner[axis + 1 :])
    return ResizedTensor(shape if slot.expert is not None else (len(experts), *shape), pieces)


def _index(
    where: NeuronAxis, layer: int, expert: int, widths: WidthPlan
) -> NDArray[np.int32] | None:
    """The entries of the axis in the export, -1 for zeros; None if nothing changes."""
    before, after = widths.source[layer][expert], widths.stored_width(layer, expert)
    kept = widths.kept(layer, expert)
    if len(kept) == before == after:
        return None
    neurons = np.full(after, -1, np.int32)
    neurons[: len(kept)] = kept
    if where.parts == 1:
        return neurons
    step, shift = (where.parts, 1) if where.interleaved else (1, before)
    both = [np.where(neurons < 0, -1, neurons * step + part * shift) for part in range(where.parts)]
    joined = np.stack(both, axis=1) if where.interleaved else np.stack(both)
    return joined.reshape(-1).astype(np.int32)


def resized_shared(model: MoEModel, widths: WidthPlan) -> dict[str, ResizedTensor]:
    """Tensors of shared experts that grow to a multiple of the new width."""
    if widths.shared is None:
        return {}
    tensors = {}
    for name, (entry, axis) in shared_tensors(model).items():
        before, after = entry.shape[axis], widths.shared * widths.scalar
        if before == after:
            continue
        index = np.arange(after, dtype=np.int32)
        index[before:] = -1
        rows, size = math.prod(entry.shape[:axis]), math.prod(entry.shape[axis + 1 :])
        gather = Gather(entry.start, rows, before, size * item_bytes(entry.dtype), index)
        shape = (*entry.shape[:axis], after, *entry.shape[axis + 1 :])
        tensors[name] = ResizedTensor(shape, (gather,))
    return tensors


def check_scales(model: MoEModel, widths: WidthPlan | None) -> None:
    """Refuse to remove neurons that FP8 scales do not allow, and name the nearest that can go."""
    blocks = scale_blocks(model)
    if widths is None or blocks is None or not widths.neurons:
        return
    if widths.choice.mode is WidthMode.RAGGED:
        raise ExportError(
            "Experts with FP8 scales cannot have widths of their own on disk, because scales are "
            "not filled up while they are read; use the width mode per-layer or uniform."
        )
    if resized_shared(model, widths):
        raise ExportError(
            "Shared experts with FP8 scales are as wide as the routed ones, and cannot be filled "
            "up; use the width mode per-layer."
        )
    for size in dict.fromkeys(blocks):
        for layer, width in widths.loaded.items():
            if width % size and width != max(widths.source[layer]):
                raise ExportError(
                    f"The experts of layer {layer} would be {width} neurons wide, but {size} "
                    f"neighbours share a scale (FP8); use --width-multiple-of {size}."
                )
        for layer, experts in widths.neurons.items():
            for expert, kept in experts.items():
                _check_kept(layer, expert, kept, widths.source[layer][expert], size)


def _check_kept(layer: int, expert: int, kept: Sequence[int], width: int, size: int) -> None:
    stays = np.zeros(-(-width // size) * size, bool)
    stays[list(kept)] = True
    stays[width:] = stays[width - 1]  # the last block may be shorter
    shares = stays.reshape(-1, size).mean(1)
    if not ((shares == 0) | (shares == 1)).all():
        odd = int(np.flatnonzero((shares > 0) & (shares < 1))[0])
        nearest = np.repeat(shares >= 0.5, size)[:width]
        kept_instead = ranges(np.flatnonzero(nearest).tolist())
        shared = ranges(range(odd * size, min((odd + 1) * size, width)))
        raise ExportError(
            f"Expert {expert} in layer {layer} would keep some of its neurons {shared} "
            f"and lose others, but they share a scale (FP8) and stay or go together; nearest that "
            f"works: keep {kept_instead or 'none'}."
        )


def resized_scale(
    entry: TensorEntry, slot: Slot, family: MoEFamily, widths: WidthPlan, blocks: tuple[int, int]
) -> ResizedTensor | None:
    """The scales of an expert's matrix with its kept blocks; None if unchanged.

    The tensor has one number per block of rows and columns, with sizes `blocks`; `check_scales`
    accepts the widths.
    """
    where = neuron_axis(family, slot)
    if where is None or slot.expert is None:
        return None
    axis, size = where.axis, blocks[where.axis]
    kept = widths.kept(slot.layer, slot.expert)
    stay = sorted({neuron // size for neuron in kept})
    count = -(-widths.stored_width(slot.layer, slot.expert) // size)
    if stay == list(range(entry.shape[axis])) and count == len(stay):
        return None
    index = np.full(count, -1, np.int32)  # the scale of zeros does not matter
    index[: len(stay)] = stay
    rows, inner = (1, entry.shape[1]) if axis == 0 else (entry.shape[0], 1)
    size_bytes = inner * item_bytes(entry.dtype)
    shape = (count, entry.shape[1]) if axis == 0 else (entry.shape[0], count)
    return ResizedTensor(shape, (Gather(entry.start, rows, entry.shape[axis], size_bytes, index),))
