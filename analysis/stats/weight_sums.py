"""Sums of |w| and of w^2 over a run of weights, in one pass over the memory.

Compiled, because passes are what it costs: the same sums by chained array operations took four of
them, and 1.9 to 2.8 times a plain copy of the bytes. Compiled when first asked for: numba alone
takes longer to import than most commands take in all.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

# A type checker cannot see through a compiler, so the sums are declared here.
_Sums = Callable[[NDArray[Any]], tuple[float, float]]

_BLOCK = 2048  # pairs that are summed in float32 before float64 takes over: exact to about 1e-7
# Sums may be reordered; not all of fastmath, because a NaN must stay one.
_FASTMATH = {"reassoc", "nsz", "contract"}
_HIGH = np.uint32(0x7FFF0000)
_SHIFT = np.uint32(16)


@cache
def _compiled(function: Callable[[Any], Any], *elements: str) -> _Sums:
    """A function of one array, compiled for arrays of these dtypes."""
    import numba
    from numba import types

    pair = types.UniTuple(types.float64, 2)
    arrays = [types.Array(getattr(types, each), 1, "C", readonly=True) for each in elements]
    compiler: Callable[[Any], _Sums] = numba.njit(
        [pair(each) for each in arrays], nogil=True, fastmath=_FASTMATH
    )
    return compiler(function)


def _bfloat16_pair_sums(pairs: Any) -> Any:
    # A bf16 is the upper half of a float32. Two lie in a word, and without the sign bit each is
    # its absolute value.
    first, second = 0.0, 0.0
    for start in range(0, pairs.size, _BLOCK):
        block_first: Any = np.float32(0)
        block_second: Any = np.float32(0)
        for position in range(start, min(pairs.size, start + _BLOCK)):
            word = pairs[position]
            odd = np.uint32(word & _HIGH).view(np.float32)
            even = np.uint32((word << _SHIFT) & _HIGH).view(np.float32)
            block_first += odd + even
            block_second += odd * odd + even * even
        first += block_first
        second += block_second
    return first, second


def _wide_sums(values: Any) -> Any:
    first, second = 0.0, 0.0
    for position in range(values.size):
        value = np.float64(values[position])
        first += abs(value)
        second += value * value
    return first, second


def _aligned(data: NDArray[np.uint8], item: int) -> NDArray[np.uint8]:
    """The same bytes where elements of `item` bytes may lie, zeros filling the last one."""
    if data.ctypes.data % item == 0 and data.size % item == 0:
        return data
    return np.concatenate([data, np.zeros(-data.size % item, dtype=np.uint8)])


def absolute_and_square_sums(data: NDArray[np.uint8], dtype: str) -> tuple[float, float]:
    """(sum |w|, sum w^2) over elements given as contiguous bytes at any address.

    Exact to 1e-7 relative for BF16, to float64 rounding for the others; NaN or infinite where an
    element is. `dtype` is BF16, F16, F32 or F64.
    """
    if dtype == "BF16":
        pair_sums = _compiled(_bfloat16_pair_sums, "uint32")
        return pair_sums(_aligned(data, 4).view(np.uint32))
    sums = _compiled(_wide_sums, "float32", "float64")
    if dtype == "F16":
        return sums(_aligned(data, 2).view(np.float16).astype(np.float32))
    wide = np.float32 if dtype == "F32" else np.float64
    return sums(_aligned(data, np.dtype(wide).itemsize).view(wide))
