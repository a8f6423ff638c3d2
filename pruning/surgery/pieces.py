"""The pieces of a pruned shard: byte ranges of the source, chosen entries of rows, new ids."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from analysis.errors import ExportError
from analysis.families.token_tables import renumbered
from analysis.numbers.elements import bfloat16_bits, fp8_values

# Entries at least this long are read one by one; of shorter ones, the whole row is read.
_LONG_BYTES = 512


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes start..end-1 of a source file."""

    start: int
    end: int

    @property
    def nbytes(self) -> int:
        """Length in bytes."""
        return self.end - self.start

    def parts(self, limit: int) -> Iterator["Span"]:
        """The same in parts of at most `limit` bytes."""
        for start in range(self.start, self.end, limit):
            yield Span(start, min(self.end, start + limit))

    def read(self, file: int, target: memoryview, name: str) -> None:
        """Fill `target` from an open file of this name."""
        read_into(file, target, self.start, name)


@dataclass(frozen=True, slots=True, eq=False)
class Gather:
    """Chosen entries of consecutive rows of a source file, and zeros between them.

    Cutting rows of a matrix gathers from one row of long entries; cutting columns, from many rows
    of short entries.
    """

    start: int  # first byte of the first row
    rows: int
    count: int  # entries in a row of the source
    size: int  # bytes of an entry
    index: NDArray[np.int32]  # entries of each row in their new order, -1 for zeros

    @property
    def nbytes(self) -> int:
        """Bytes that come out."""
        return self.rows * len(self.index) * self.size

    def parts(self, limit: int) -> Iterator["Gather"]:
        """The same in parts that read and give at most `limit` bytes each."""
        if not self.nbytes:
            return
        row = max(len(self.index), self.count) * self.size
        if self.rows > 1 and row <= limit:
            step = limit // row
            for first in range(0, self.rows, step):
                start = self.start + first * self.count * self.size
                yield replace(self, start=start, rows=min(step, self.rows - first))
            return
        step = max(1, limit // self.size)
        for number in range(self.rows):
            start = self.start + number * self.count * self.size
            for first in range(0, len(self.index), step):
                chosen = self.index[first : first + step]
                yield replace(self, start=start, rows=1, index=chosen)

    def read(self, file: int, target: memoryview, name: str) -> None:
        """Fill `target` from an open file."""
        if not self.count:  # an expert without neurons gives only zeros
            target[:] = bytes(len(target))
        elif self.rows == 1 and self.size >= _LONG_BYTES:
            self._read_runs(file, target, name)
        else:
            self._read_rows(file, target, name)

    def _read_runs(self, file: int, target: memoryview, name: str) -> None:
        for first, last in _runs(self.index):
            piece = target[first * self.size : last * self.size]
            if self.index[first] < 0:
                piece[:] = bytes(len(piece))
            else:
                read_into(file, piece, self.start + int(self.index[first]) * self.size, name)

    def _read_rows(self, file: int, target: memoryview, name: str) -> None:
        rows = np.empty(self.rows * self.count * self.size, np.uint8)
        read_into(file, rows.data, self.start, name)
        item = self.size if self.size in (1, 2, 4, 8) else 1
        width = self.size // item
        source = rows.view(f"u{item}").reshape(self.rows, self.count, width)
        out = np.frombuffer(target, f"u{item}").reshape(self.rows, len(self.index), width)
        # `take` clips -1 to the first entry, and is about twenty times faster than indexing.
        np.take(source, self.index, axis=1, out=out, mode="clip")
        for first, last in _runs(self.index):
            if self.index[first] < 0:
                out[:, first:last] = 0


def _runs(index: NDArray[np.int32]) -> Iterator[tuple[int, int]]:
    """Runs (first, last + 1) of entries that are consecutive in the source, or zeros."""
    zeros = index < 0
    follows = (np.diff(index) == 1) & ~zeros[:-1] | zeros[:-1] & zeros[1:]
    breaks = (np.flatnonzero(~follows) + 1).tolist()
    yield from zip((0, *breaks), (*breaks, len(index)), strict=True)


@dataclass(frozen=True, slots=True)
class Fill:
    """One element again and again, which no source has."""

    item: bytes  # the element
    nbytes: int  # a multiple of its length

    def parts(self, limit: int) -> Iterator["Fill"]:
        """The same in parts of at most `limit` bytes, or of one element."""
        step = max(1, limit // len(self.item)) * len(self.item)
        for first in range(0, self.nbytes, step):
            yield Fill(self.item, min(step, self.nbytes - first))

    def read(self, file: int, target: memoryview, name: str) -> None:
        """Fill `target`; nothing is read."""
        target[:] = self.item * (len(target) // len(self.item))


@dataclass(frozen=True, slots=True)
class Renumber:
    """Rows of a table of token ids, for the experts that stay; `families.token_tables`."""

    start: int  # first byte of the first row
    rows: int
    count: int  # experts in a row
    dtype: str  # numpy's, of an id
    kept: tuple[int, ...]  # original ids in their new order, negative where filled up
    num_experts: int  # of the layer in the source
    first: int = 0  # token id of the first row

    @property
    def nbytes(self) -> int:
        """Bytes that come out, as many as are read."""
        return self.rows * self._row

    @property
    def _row(self) -> int:
        return self.count * np.dtype(self.dtype).itemsize

    def parts(self, limit: int) -> Iterator["Renumber"]:
        """The same in parts of at most `limit` bytes, or of one row."""
        step = max(1, limit // self._row)
        for first in range(0, self.rows, step):
            yield replace(
                self,
                start=self.start + first * self._row,
                rows=min(step, self.rows - first),
                first=self.first + first,
            )

    def read(self, file: int, target: memoryview, name: str) -> None:
        """Fill `target` from an open file."""
        buffer = bytearray(len(target))
        read_into(file, memoryview(buffer), self.start, name)
        table = np.frombuffer(buffer, self.dtype).reshape(self.rows, self.count)
        target[:] = renumbered(table, self.kept, self.num_experts, self.first).tobytes()


@dataclass(frozen=True, slots=True, eq=False)
class Dequantise:
    """Rows of an FP8 matrix, as BF16."""

    start: int  # first byte of the first row
    rows: int
    scales: NDArray[np.float32]  # (blocks down, blocks across) of the whole matrix
    block: tuple[int, int]  # rows and columns that share a scale; the last may be cut
    columns: int
    first: int = 0  # place of the first row in the matrix

    @property
    def nbytes(self) -> int:
        """Bytes that come out, twice as many as are read."""
        return 2 * self.rows * self.columns

    def parts(self, limit: int) -> Iterator["Dequantise"]:
        """The same in parts of at most `limit` bytes, or of one row."""
        step = max(1, limit // (2 * self.columns))
        for first in range(0, self.rows, step):
            yield replace(
                self,
                start=self.start + first * self.columns,
                rows=min(step, self.rows - first),
                first=self.first + first,
            )

    def read(self, file: int, target: memoryview, name: str) -> None:
        """Fill `target` from an open file."""
        codes = np.empty((self.rows, self.columns), np.uint8)
        read_into(file, codes.reshape(-1).data, self.start, name)
        down = (self.first + np.arange(self.rows)) // self.block[0]
        across = np.arange(self.columns) // self.block[1]
        values = fp8_values(codes) * self.scales[down[:, None], across]
        target[:] = bfloat16_bits(values).astype("<u2").tobytes()


Piece = Span | Gather | Fill | Renumber | Dequantise


def read_into(file: int, target: memoryview, position: int, name: str) -> None:
    """Fill `target` from a place in an open file."""
    while target:
        got = os.preadv(file, [target], position)
        if not got:
            raise ExportError(f"The source's {name} became shorter while it was read.")
        target = target[got:]
        position += got


def item_bytes(dtype: str) -> int:
    """Bytes of an element, by the dtype's name, as a tensor may have no elements."""
    bits = re.search(r"\d+", dtype)
    if bits is None or int(bits[0]) % 8:
        raise ExportError(f"Neurons cannot be cut out of tensors of type {dtype}.")
    return int(bits[0]) // 8
