"""FP8 matrices in blocks that share a scale: what their bytes stand for.

A block has the size that config.json states; the last of a row or column of blocks may be cut, as
in DeepSeek-V3 (576 rows are 4.5 blocks of 128).
"""

from collections.abc import Sequence
from typing import Any

FP8_DTYPE = "F8_E4M3"  # as safetensors names it


def block_shape(
    shape: Sequence[int], scales: Sequence[int], stated: Sequence[int] | None
) -> tuple[int, ...] | None:
    """Rows and columns of a block, for the shapes of a matrix and of its scales.

    `stated`: as config.json has it; an axis that it does not fit is divided evenly. None if the
    scales fit neither way.
    """
    if len(shape) != len(scales) or 0 in scales:
        return None
    sizes = []
    for axis, (size, count) in enumerate(zip(shape, scales, strict=True)):
        block = stated[axis - len(shape)] if stated and axis >= len(shape) - 2 else 0
        if block and -(-size // block) == count:
            sizes.append(block)
        elif size % count == 0:
            sizes.append(size // count)
        else:
            return None
    return tuple(sizes)


def apply_scales(values_RC: Any, scales_rc: Any, block: Sequence[int]) -> None:
    """Multiply the elements of each block by its scale, in place; numpy arrays or torch tensors.

    Axes before the last two are shared by both.
    """
    height, width = block[-2:]
    for row in range(scales_rc.shape[-2]):
        for column in range(scales_rc.shape[-1]):
            rows = slice(row * height, (row + 1) * height)
            columns = slice(column * width, (column + 1) * width)
            scale = scales_rc[..., row : row + 1, column : column + 1]
            values_RC[..., rows, columns] *= scale
