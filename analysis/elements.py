"""Floating point elements of safetensors files: their sizes and values."""

import numpy as np

from analysis.arrays import FloatArray

# Safetensors name of the dtype -> bytes of an element.
FLOAT_BYTES = {"BF16": 2, "F16": 2, "F32": 4, "F64": 8}
_STORED = {"BF16": "<u2", "F16": "<f2", "F32": "<f4", "F64": "<f8"}


def as_float64(raw: bytes, dtype: str) -> FloatArray:
    """The exact values of elements given as bytes; `dtype` is one of FLOAT_BYTES."""
    stored = np.frombuffer(raw, dtype=_STORED[dtype])
    if dtype == "BF16":  # the upper half of a float32
        stored = (stored.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return stored.astype(np.float64)
