"""Tensors of an export whose experts have other widths. Nothing is read."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analysis.checkpoint import TensorEntry
from analysis.families import MoEFamily, Slot, SlotKind
from analysis.model import MoEModel
from analysis.widths import AtomAxis, atom_axis, shared_tensors
from pruning.atoms.widths import WidthPlan
from pruning.surgery.pieces import Gather, Piece, item_bytes


@dataclass(frozen=True, slots=True)
class ResizedTensor:
    """A tensor's shape and bytes in the export."""

    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]


def resized_experts(
    entry: TensorEntry, slot: Slot, kept: Sequence[int], family: MoEFamily, widths: WidthPlan
) -> ResizedTensor | None:
    """A tensor of experts with the neurons that stay, filled up with zeros; None if unchanged.

    The tensor lies at `slot` in the source; of its layer the experts `kept` stay.
    """
    where = atom_axis(family, slot) if slot.kind is not SlotKind.ROUTER else None
    if where is None:
        return None
    experts = kept if slot.expert is None else (slot.expert,)
    indices = [_index(where, slot.layer, expert, widths) for expert in experts]
    if all(index is None for index in indices):
        return None
    inner = entry.shape[1:] if slot.expert is None else entry.shape
    axis = where.axis - (len(entry.shape) - len(inner))
    width = where.parts * widths.written(slot.layer, experts[0])
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


def _index(where: AtomAxis, layer: int, expert: int, widths: WidthPlan) -> NDArray[np.int32] | None:
    """Which entries of the axis come out, in order, -1 for zeros; None where nothing changes."""
    before, after = widths.source[layer][expert], widths.written(layer, expert)
    kept = widths.kept(layer, expert)
    if len(kept) == before == after:
        return None
    atoms = np.full(after, -1, np.int32)
    atoms[: len(kept)] = kept
    if where.parts == 1:
        return atoms
    step, shift = (where.parts, 1) if where.interleaved else (1, before)
    both = [np.where(atoms < 0, -1, atoms * step + part * shift) for part in range(where.parts)]
    joined = np.stack(both, axis=1) if where.interleaved else np.stack(both)
    return joined.reshape(-1).astype(np.int32)


def resized_shared(model: MoEModel, widths: WidthPlan) -> dict[str, ResizedTensor]:
    """Tensors of shared experts that grow, because their width is a multiple of the new one."""
    if widths.shared is None:
        return {}
    found = {}
    for name, (entry, axis) in shared_tensors(model).items():
        before, after = entry.shape[axis], widths.shared * widths.scalar
        if before == after:
            continue
        index = np.arange(after, dtype=np.int32)
        index[before:] = -1
        rows, size = math.prod(entry.shape[:axis]), math.prod(entry.shape[axis + 1 :])
        gather = Gather(entry.start, rows, before, size * item_bytes(entry.dtype), index)
        shape = (*entry.shape[:axis], after, *entry.shape[axis + 1 :])
        found[name] = ResizedTensor(shape, (gather,))
    return found
