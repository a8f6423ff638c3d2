"""Scales of FP8 experts that lose neurons: one number for each block of weights. Nothing is read.

A scale goes with its block, so the neurons of a block stay or go together, and what is left is as
wide as whole blocks.
"""

from collections.abc import Sequence

import numpy as np

from analysis.checkpoint import TensorEntry
from analysis.errors import ExportError
from analysis.families import MoEFamily, Slot
from analysis.model import MoEModel
from analysis.widths import atom_axis, scale_blocks
from pruning.atoms.widths import WidthMode, WidthPlan
from pruning.constraints import spans
from pruning.surgery.pieces import Gather, item_bytes
from pruning.surgery.widths import ResizedTensor


def check_scales(model: MoEModel, widths: WidthPlan | None) -> None:
    """Refuse neurons that cannot go from FP8 experts, with the nearest that can."""
    blocks = scale_blocks(model)
    if widths is None or blocks is None or not widths.atoms:
        return
    if widths.choice.mode is WidthMode.RAGGED:
        raise ExportError(
            "Experts with FP8 scales cannot have widths of their own on disk, because scales are "
            "not filled up while they are read; use the width mode per-layer or uniform."
        )
    if widths.shared is not None:
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
        for layer, experts in widths.atoms.items():
            for expert, kept in experts.items():
                _check_kept(layer, expert, kept, widths.source[layer][expert], size)


def _check_kept(layer: int, expert: int, kept: Sequence[int], width: int, size: int) -> None:
    held = np.zeros(-(-width // size) * size, bool)
    held[list(kept)] = True
    held[width:] = held[width - 1]  # the last block may be shorter
    shares = held.reshape(-1, size).mean(1)
    if not ((shares == 0) | (shares == 1)).all():
        odd = int(np.flatnonzero((shares > 0) & (shares < 1))[0])
        whole = np.repeat(shares >= 0.5, size)[:width]
        kept_instead = spans(np.flatnonzero(whole).tolist())
        last = min((odd + 1) * size, width) - 1
        raise ExportError(
            f"Expert {expert} in layer {layer} would keep some of its neurons {odd * size}..{last} "
            f"and lose others, but they share a scale (FP8) and stay or go together; nearest that "
            f"works: keep {kept_instead or 'none'}."
        )


def resized_scale(
    entry: TensorEntry, slot: Slot, family: MoEFamily, widths: WidthPlan, blocks: tuple[int, int]
) -> ResizedTensor | None:
    """The scales of an expert's matrix with the blocks that stay; None if unchanged.

    The tensor holds one number for each block of rows and columns, whose sizes are `blocks`;
    `check_scales` accepts the widths.
    """
    where = atom_axis(family, slot)
    if where is None or slot.expert is None:
        return None
    axis, size = where.axis, blocks[where.axis]
    kept = widths.kept(slot.layer, slot.expert)
    stay = sorted({neuron // size for neuron in kept})
    count = -(-widths.written(slot.layer, slot.expert) // size)
    if stay == list(range(entry.shape[axis])) and count == len(stay):
        return None
    index = np.full(count, -1, np.int32)  # of blocks of zeros the scale does not matter
    index[: len(stay)] = stay
    rows, inner = (1, entry.shape[1]) if axis == 0 else (entry.shape[0], 1)
    size_bytes = inner * item_bytes(entry.dtype)
    shape = (count, entry.shape[1]) if axis == 0 else (entry.shape[0], count)
    return ResizedTensor(shape, (Gather(entry.start, rows, entry.shape[axis], size_bytes, index),))
