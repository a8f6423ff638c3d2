"""FP8 matrices of a checkpoint, each with the scales of its blocks."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from analysis.checkpoint.fp8 import FP8_DTYPE, block_shape
from analysis.checkpoint.index import TensorEntry
from analysis.model.moe_model import MoEModel
from analysis.numbers.elements import FLOAT_BYTES, as_float64


@dataclass(frozen=True, slots=True)
class Fp8Matrix:
    """A matrix, its scales, and what each of these spans."""

    entry: TensorEntry
    grid: TensorEntry  # the scales
    block: tuple[int, int]  # rows and columns that share a scale; the last may be cut
    folder: Path  # of the checkpoint

    def scales(self) -> NDArray[np.float32]:
        """(blocks down, blocks across); one for 16,384 elements."""
        with (self.folder / self.grid.shard).open("rb") as file:
            file.seek(self.grid.start)
            raw = file.read(self.grid.nbytes)
        return as_float64(raw, self.grid.dtype).reshape(self.grid.shape).astype(np.float32)


def fp8_matrix(model: MoEModel, entry: TensorEntry) -> Fp8Matrix | None:
    """A tensor with its scales; None for others, and where scales are missing or not numbers."""
    grid = model.checkpoint.tensors.get(f"{entry.name}_scale_inv")
    if model.quantisation != "fp8" or entry.dtype != FP8_DTYPE or grid is None:
        return None
    block = block_shape(entry.shape, grid.shape, model.stated_block)
    if block is None or len(block) != 2 or grid.dtype not in FLOAT_BYTES:
        return None
    return Fp8Matrix(entry, grid, (block[0], block[1]), model.checkpoint.path)
