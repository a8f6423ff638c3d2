"""Arrays of expert ids as servers and numpy write them; what is wrong is a ValueError."""

from __future__ import annotations

import base64
import binascii
import io
import tokenize
from collections.abc import Callable, Iterator
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.integer[Any]]
Shape = tuple[int, ...]
_BLOCK = 8 << 20  # bytes that are read at once
_LONGEST_HEADER = 10_000  # bytes, as numpy has it, which reads a longer one before it refuses


# What numpy raises on a header that is none: it parses a Python literal.
_NO_HEADER = (
    ValueError,
    KeyError,
    TypeError,
    SyntaxError,
    MemoryError,
    RecursionError,
    tokenize.TokenError,
)


def decoded(text: object) -> bytes:
    """The bytes of a base64 text."""
    if not isinstance(text, str):
        raise ValueError("its routed experts are no text in base64")  # noqa: TRY004  (as others)
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(f"its routed experts are no base64 ({error})") from error


def flat_ids(text: object) -> Ids:
    """int32 ids without a shape, as SGLang writes them."""
    data = decoded(text)
    if len(data) % 4:
        raise ValueError(f"its routed experts have {len(data)} bytes, which are no 32-bit numbers")
    return np.frombuffer(data, dtype="<i4")


def ids_of(value: object) -> Ids:
    """(tokens, planes, top-k): nested lists, or a .npy file in base64, as vLLM writes them."""
    if not isinstance(value, list):
        return _one_block(decoded(value))
    try:
        ids = np.asarray(value)
    except ValueError as error:
        raise ValueError("its lists of routed experts differ in length") from error
    if not ids.size:
        return np.zeros((0, 0, 0), dtype=np.int32)
    _check(ids.dtype, ids.shape)
    return ids


def _one_block(data: bytes) -> Ids:
    dtype, shape, start = _header(io.BytesIO(data))
    if not shape[0]:
        return np.zeros((0, 0, 0), dtype=np.int32)
    if len(data) - start != dtype.itemsize * int(np.prod(shape, dtype=object)):
        raise ValueError(
            f"its routed experts are cut short: {shape} in {len(data) - start} bytes of {dtype}"
        )
    return np.frombuffer(data, dtype, offset=start).reshape(shape)


def npy_blocks(file: IO[bytes], check: Callable[[Shape], None]) -> Iterator[Ids]:
    """(tokens, planes, top-k) of a .npy file, a block of tokens at a time.

    `check` refuses a shape before the first number is read: a few packed bytes may claim gigabytes.
    """
    dtype, shape, _ = _header(file)
    check(shape)
    tokens, width = shape[0], shape[1] * shape[2] * dtype.itemsize
    rows = max(1, _BLOCK // max(1, width))
    for first in range(0, tokens, rows):
        count = min(rows, tokens - first)
        data = _exactly(file, count * width)
        if len(data) < count * width:
            raise ValueError(f"it is cut short: it has fewer than its {tokens:,} tokens")
        yield np.frombuffer(data, dtype).reshape(count, *shape[1:])


def _exactly(file: IO[bytes], size: int) -> bytes:
    parts = []
    while size and (part := file.read(size)):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _header(file: IO[bytes]) -> tuple[np.dtype[Any], Shape, int]:
    """Type, shape and first byte of the numbers; a claimed size allocates nothing."""
    start = file.read(10)
    if start[6:7] == b"\x02":  # whose length has four bytes, not two
        start += file.read(2)
    length = int.from_bytes(start[8:], "little")
    head = io.BytesIO(start + file.read(min(length, _LONGEST_HEADER)))
    try:
        version = np.lib.format.read_magic(head)
        read = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }[version]
        shape, fortran, dtype = read(head)
    except _NO_HEADER as error:
        raise ValueError("its routed experts are no .npy file of numbers") from error
    _check(dtype, shape)
    if fortran and np.prod(shape, dtype=object) > 1:
        raise ValueError("its routed experts are stored by columns; save np.ascontiguousarray")
    return dtype, shape, len(start) + length


def _check(dtype: np.dtype[Any], shape: Shape) -> None:
    if dtype.kind not in "iu":
        raise ValueError(f"its routed experts are {dtype}, not whole numbers")
    if len(shape) != 3:
        raise ValueError(
            f"its routed experts have the shape {shape}; it should be tokens, layers, top-k"
        )
    if min(shape) < 0 or (shape[0] and 0 in shape):
        raise ValueError(f"its routed experts have the shape {shape}, which no array has")
