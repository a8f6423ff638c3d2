"""Why a checkpoint with quantised weights cannot be loaded, from its configuration and headers."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

from analysis.checkpoint.fp8 import block_shape
from analysis.families.base import SlotKind

if TYPE_CHECKING:
    from analysis.checkpoint.index import TensorEntry
    from analysis.model.moe_model import MoEModel

# Quantisations that are undone on loading; checkpoints with others cannot be loaded.
DEQUANTISED = ("fp8", "mxfp4")
# Why not, of those that transformers puts in place of linear layers.
_UNREAD = dict.fromkeys(("awq", "gptq"), "transformers packs linear layers, and it stacks experts")


@lru_cache(maxsize=8)
def unloadable(model: MoEModel) -> str:
    """Why its quantised weights cannot be loaded, on one line; empty if they can."""
    if model.quantisation and model.quantisation not in DEQUANTISED:
        why = _UNREAD.get(model.quantisation, f"only {' and '.join(DEQUANTISED)} are tried")
        return f"checkpoints quantised with {model.quantisation} cannot be loaded: {why}"
    for name, slot in model.slots.items() if model.quantisation == "fp8" else ():
        if slot.kind is SlotKind.STACKED and slot.role.endswith("scale_inv"):
            # Its dequantisation looks for scales of `weight`; others it leaves out in silence.
            return (
                f"transformers would take the stacked experts of FP8 without their scales "
                f"({name}); use the model in bfloat16"
            )
    for entry, grid in _scaled(model):
        if not block_shape(entry.shape, grid.shape, model.stated_block):
            return (
                f"{entry.name} cannot be dequantised: {list(entry.shape)} does not divide into "
                f"its {list(grid.shape)} scales, evenly or by `weight_block_size`; use the "
                "model in bfloat16"
            )
    return ""


@lru_cache(maxsize=8)
def cut_blocks(model: MoEModel) -> str:
    """Why transformers alone cannot dequantise it, on one line; empty if it can.

    It derives blocks from the shapes, so that a last block that is cut is an error, or, where
    the shapes divide, takes wrong scales in silence.
    """
    for entry, grid in _scaled(model):
        block = block_shape(entry.shape, grid.shape, model.stated_block)
        if block and block != block_shape(entry.shape, grid.shape, None):
            return (
                f"transformers cannot dequantise {entry.name}: {list(entry.shape)} does not "
                f"divide into its {list(grid.shape)} scales by blocks of {list(block)}"
            )
    return ""


def _scaled(model: MoEModel) -> Iterator[tuple[TensorEntry, TensorEntry]]:
    """Matrices of FP8 and their scales."""
    for name, entry in model.checkpoint.tensors.items():
        grid = model.checkpoint.tensors.get(f"{name}_scale_inv")
        if grid is not None and len(grid.shape) == len(entry.shape) and 0 not in grid.shape:
            yield entry, grid
