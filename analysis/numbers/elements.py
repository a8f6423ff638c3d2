"""Floating point elements of safetensors files: their sizes and values."""

from functools import cache

import numpy as np
from numpy.typing import NDArray

from analysis.numbers.arrays import FloatArray

# Safetensors name of the dtype -> bytes of an element.
FLOAT_BYTES = {"BF16": 2, "F16": 2, "F32": 4, "F64": 8}
_STORED = {"BF16": "<u2", "F16": "<f2", "F32": "<f4", "F64": "<f8"}


def as_float64(raw: bytes, dtype: str) -> FloatArray:
    """The exact values of elements given as bytes; `dtype` is one of FLOAT_BYTES."""
    stored = np.frombuffer(raw, dtype=_STORED[dtype])
    if dtype == "BF16":  # the upper half of a float32
        stored = (stored.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return stored.astype(np.float64)


@cache
def _float_of_byte() -> FloatArray:
    """The number of each byte of F8_E4M3; there is no infinity.

    A sign, four bits of exponent (bias 7), three of mantissa.
    """
    codes = np.arange(256)
    exponents, mantissas = codes >> 3 & 15, codes & 7
    sizes = np.where(
        exponents > 0, np.ldexp(1 + mantissas / 8, exponents - 7), np.ldexp(mantissas / 8, -6)
    )
    sizes[codes & 127 == 127] = np.nan
    return np.where(codes < 128, sizes, -sizes)


def bfloat16_bits(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The bits of the nearest BF16 numbers; of two that are as near, the even one."""
    bits = values.view(np.uint32)
    # Half of the last place, less one bit where the place is even; the upper half is the number.
    rounded = (bits + (np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1)))) >> np.uint32(16)
    return np.where(np.isnan(values), np.uint32(0x7FC0), rounded).astype(np.uint16)


def recast(raw: NDArray[np.uint8], dtype: str, target: str) -> NDArray[np.uint8]:
    """The bytes of the same numbers in another dtype: the nearest there, of two the even one.

    Both dtypes are of FLOAT_BYTES; what is too large for `target` becomes infinite, as in torch.
    """
    values = as_float64(raw.tobytes(), dtype)
    with np.errstate(over="ignore"):
        if target == "BF16":
            return bfloat16_bits(values.astype(np.float32)).astype("<u2").view(np.uint8)
        return values.astype(_STORED[target]).view(np.uint8)


def fp8_values(codes: NDArray[np.uint8]) -> NDArray[np.float32]:
    """The numbers of FP8 bytes before they are scaled; exact."""
    return _float_of_byte().astype(np.float32)[codes]
