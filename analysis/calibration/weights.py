"""Weight statistics: L1 and L2 norms of every expert's matrices, streamed from safetensors.

No model is instantiated and no matrix is held whole: neighbours in a shard are mapped, measured
chunk by chunk, and their pages are given back. Biases are left out. FP8 is dequantised to float32
as it is read.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.checkpoint.fp8 import apply_scales
from analysis.errors import CheckpointError, UnsupportedModelError
from analysis.families.base import PROJECTIONS, MoEFamily
from analysis.files.naming import digest_of, now, run_name
from analysis.lazy import pd
from analysis.machine.launcher import launched_world
from analysis.model.fp8_matrices import Fp8Matrix, fp8_matrix
from analysis.model.moe_model import LocatedTensor, MoEModel, is_expert_weight
from analysis.numbers.elements import FLOAT_BYTES, fp8_values
from analysis.progress import NOTHING, Progress, Whole, cost
from analysis.stats.columns import WEIGHT_COLUMNS
from analysis.stats.manifest import SCHEMA_VERSION, Run, RunManifest, measured_model
from analysis.stats.store import StatsStore
from analysis.stats.writing import save_weight_stats

# Compiled functions have no types that mypy can see.
_Sums = Callable[[NDArray[Any]], tuple[float, float]]

_BLOCK = 2048  # pairs summed in float32 before they are added in float64: exact to about 1e-7
# Allows reordered sums; not all of fastmath, because NaN must stay NaN.
_FASTMATH = {"reassoc", "nsz", "contract"}
_HIGH = np.uint32(0x7FFF0000)
_SHIFT = np.uint32(16)
_CHUNK_BYTES = 1 << 23  # measured at once; limits temporary copies
_COMPILING = 0.65  # seconds, by numba, in each process
GROUP_BYTES = 1 << 25  # measured by a thread at once, then its pages are freed


@cache
def _compiled(function: Callable[[Any], Any], element: str) -> _Sums:
    """A function of one array, compiled for arrays of this dtype.

    Compiled, because the same sums by numpy take four passes over the memory; on first use,
    because importing numba takes longer than most commands.
    """
    import numba
    from numba import types

    array = types.Array(getattr(types, element), 1, "C", readonly=True)
    pair = types.UniTuple(types.float64, 2)
    compiler: Callable[[Any], _Sums] = numba.njit(pair(array), nogil=True, fastmath=_FASTMATH)
    return compiler(function)


def _bfloat16_pair_sums(pairs: Any) -> Any:
    # A word holds two bf16, each the upper half of a float32; masking the sign bit gives |w|.
    first, second = 0.0, 0.0
    for start in range(0, pairs.size, _BLOCK):
        block_first: Any = np.float32(0)
        block_second: Any = np.float32(0)
        # Positions from 0 cannot be negative: words are then loaded in vectors, else one by one.
        block = pairs[start : start + _BLOCK]
        for position in range(block.size):
            word = block[position]
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
    """The same bytes, aligned to `item` bytes and padded with zeros to a multiple of it."""
    if data.ctypes.data % item == 0 and data.size % item == 0:
        return data
    return np.concatenate([data, np.zeros(-data.size % item, dtype=np.uint8)])


def absolute_and_square_sums(data: NDArray[np.uint8], dtype: str) -> tuple[float, float]:
    """(sum |w|, sum w^2) over elements given as contiguous bytes at any address.

    Exact to 1e-7 relative for BF16, to float64 rounding for F16, F32 and F64; NaN or infinite if an
    element is.
    """
    if dtype == "BF16":
        pair_sums = _compiled(_bfloat16_pair_sums, "uint32")
        return pair_sums(_aligned(data, 4).view(np.uint32))
    wide = np.float64 if dtype == "F64" else np.float32
    sums = _compiled(_wide_sums, np.dtype(wide).name)
    if dtype == "F16":
        return sums(_aligned(data, 2).view(np.float16).astype(wide))
    return sums(_aligned(data, np.dtype(wide).itemsize).view(wide))


@dataclass(frozen=True, slots=True)
class _Piece:
    """A byte range with elements of one projection of an expert; only `columns` if given."""

    layer: int
    expert: int
    projection: str
    shard: str
    dtype: str
    start: int
    end: int
    columns: tuple[int, slice] | None = None  # elements per row, and which of them
    matrix: Fp8Matrix | None = None  # if it is in FP8

    @property
    def item(self) -> int:
        return 1 if self.matrix else FLOAT_BYTES[self.dtype]

    @property
    def numel(self) -> int:
        elements = (self.end - self.start) // self.item
        if self.columns is None:
            return elements
        row, chosen = self.columns
        return elements // row * len(range(*chosen.indices(row)))


class _MappedGroup:
    """Neighbours in a shard, mapped alone: address space may be scarcer than a shard is large."""

    def __init__(self, path: Path, group: Sequence[_Piece]) -> None:
        self._start = group[0].start // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
        with path.open("rb") as file:
            # Reading beyond the end of a mapped file kills the process, so the size is checked.
            if os.fstat(file.fileno()).st_size < group[-1].end:
                raise CheckpointError(f"{path.name} became shorter while it was read.")
            length = group[-1].end - self._start
            mapped = mmap.mmap(file.fileno(), length, access=mmap.ACCESS_READ, offset=self._start)
        self._bytes = np.frombuffer(mapped, dtype=np.uint8)

    def _part(self, start: int, end: int) -> NDArray[np.uint8]:
        """Bytes by their places in the shard."""
        return self._bytes[start - self._start : end - self._start]

    def _scaled_sums(self, piece: _Piece, matrix: Fp8Matrix) -> tuple[float, float]:
        """Both sums of an FP8 matrix, dequantised to float32 in whole rows of blocks."""
        scales = matrix.scales()
        row, height = matrix.entry.shape[1], matrix.block[0]
        blocks = max(1, _CHUNK_BYTES // (4 * row * height))
        first, second = 0.0, 0.0
        for top in range(0, len(scales), blocks):
            start = piece.start + top * height * row
            end = min(start + blocks * height * row, piece.end)
            values = fp8_values(self._part(start, end)).reshape(-1, row)
            apply_scales(values, scales[top : top + blocks], matrix.block)
            sums = absolute_and_square_sums(values.reshape(-1).view(np.uint8), "F32")
            first, second = first + sums[0], second + sums[1]
        return first, second

    def sums(self, piece: _Piece) -> tuple[float, float]:
        """Both sums of a piece of the group."""
        if piece.matrix:
            return self._scaled_sums(piece, piece.matrix)
        row, chosen = piece.columns or (0, slice(None))
        whole_rows = row * piece.item or 1
        chunk = max(1, _CHUNK_BYTES // whole_rows) * whole_rows
        parts = []
        for start in range(piece.start, piece.end, chunk):
            data = self._part(start, min(start + chunk, piece.end))
            if row:  # copy the bytes of the chosen columns together
                matrix = data.reshape(-1, row, piece.item)
                data = np.ascontiguousarray(matrix[:, chosen]).reshape(-1)
            parts.append(absolute_and_square_sums(data, piece.dtype))
        return sum(first for first, _ in parts), sum(second for _, second in parts)


def _stacked_pieces(family: MoEFamily, tensor: LocatedTensor) -> Iterator[_Piece]:
    entry, slot = tensor.entry, tensor.slot
    step, width = entry.nbytes // entry.shape[0], entry.shape[-1]
    half = width // 2
    gate, up = (width, slice(half)), (width, slice(half, width))
    if family.is_interleaved:
        gate, up = (width, slice(0, width, 2)), (width, slice(1, width, 2))
    for expert in range(entry.shape[0]):
        start = entry.start + expert * step
        where = (entry.shard, entry.dtype, start, start + step)
        if slot.projection != "gate_up":
            yield _Piece(slot.layer, expert, slot.projection, *where)
        elif family.is_transposed:
            yield _Piece(slot.layer, expert, "gate", *where, gate)
            yield _Piece(slot.layer, expert, "up", *where, up)
        else:  # the gate rows come first
            middle = start + step // 2
            for part, span in (("gate", (start, middle)), ("up", (middle, start + step))):
                yield _Piece(slot.layer, expert, part, entry.shard, entry.dtype, *span)


def _pieces(model: MoEModel) -> list[_Piece]:
    pieces: list[_Piece] = []
    for tensor in (weight for layer in model.layers for weight in model.located[layer.index]):
        entry, slot = tensor.entry, tensor.slot
        if not is_expert_weight(slot):
            continue
        if slot.expert is None:
            pieces += _stacked_pieces(model.family, tensor)
        else:
            where = (entry.shard, entry.dtype, entry.start, entry.end)
            matrix = fp8_matrix(model, entry)
            pieces.append(_Piece(slot.layer, slot.expert, slot.projection, *where, None, matrix))
    for piece in pieces:
        if piece.dtype not in FLOAT_BYTES and not piece.matrix:
            raise UnsupportedModelError(
                f"Expert weights of dtype {piece.dtype} in {piece.shard} cannot be measured; "
                f"supported: {', '.join(FLOAT_BYTES)}. Dequantise the checkpoint first."
            )
    return sorted(pieces, key=lambda piece: (piece.shard, piece.start))


def num_threads() -> int:
    """Threads that measure, each a group of neighbours."""
    return min(8, os.cpu_count() or 1)


def _thread_tasks(pieces: Sequence[_Piece]) -> Iterator[tuple[_Piece, ...]]:
    """Neighbours in one shard, so that small experts share a task of the thread pool."""
    for _, in_shard in groupby(pieces, key=lambda piece: piece.shard):
        group: list[_Piece] = []
        for piece in in_shard:
            if group and piece.end - group[0].start > GROUP_BYTES:
                yield tuple(group)
                group = []
            group.append(piece)
        yield tuple(group)


def check_measurable(model: MoEModel) -> None:
    """Refuse experts that `measure_weights` cannot measure; reads no weight."""
    _pieces(model)


def weights_cost(nbytes: int) -> dict[str, float]:
    """What it costs to measure so many bytes of experts."""
    return {"compile": cost("compile", _COMPILING), "sum": cost("sum", nbytes)}


def _step(done: int, total: int, *, is_compiled: bool = True) -> Progress:
    costs = weights_cost(done)
    whole = Whole(weights_cost(total), costs if is_compiled else {})
    return Progress("reading weights", done, total, "bytes", whole=whole)


def measure_weights(model: MoEModel) -> Generator[Progress, None, pd.DataFrame]:
    """Table `layer, expert, projection, l1, l2_squared, numel`: one row per expert matrix.

    l1 = sum |w|, l2_squared = sum w^2 (float64), numel = elements; projections gate, up, down
    (no gate where experts have none).
    """
    pieces = _pieces(model)
    total = sum(piece.end - piece.start for piece in pieces)

    def measure(group: tuple[_Piece, ...]) -> list[tuple[float, float]]:
        mapped = _MappedGroup(model.checkpoint.path / group[0].shard, group)
        return [mapped.sums(piece) for piece in group]

    yield _step(0, total, is_compiled=False)
    for dtype in {
        "F32" if piece.matrix else piece.dtype for piece in pieces
    }:  # compile once, not in each thread
        absolute_and_square_sums(np.empty(0, dtype=np.uint8), dtype)
    sums: list[tuple[float, float]] = []
    done = 0
    groups = list(_thread_tasks(pieces))
    with ThreadPoolExecutor(num_threads()) as pool:
        results = pool.map(measure, groups)
        pd.DataFrame()  # imports pandas, which writes the table, while the threads read
        try:
            for group, result in zip(groups, results, strict=True):
                sums.extend(result)
                done += sum(piece.end - piece.start for piece in group)
                yield _step(done, total)
        finally:  # a task that is closed reads no more
            pool.shutdown(cancel_futures=True)
    rows = [
        (piece.layer, piece.expert, piece.projection, l1, l2_squared, piece.numel)
        for piece, (l1, l2_squared) in zip(pieces, sums, strict=True)
    ]
    table = pd.DataFrame(rows, columns=list(WEIGHT_COLUMNS)).astype(WEIGHT_COLUMNS)
    bad = table[~np.isfinite(table["l2_squared"])]
    if len(bad):
        layer, expert, projection = bad[["layer", "expert", "projection"]].iloc[0]
        raise CheckpointError(
            f"The {projection} projection of expert {expert} in layer {layer} has values that are "
            "not finite; fetch the checkpoint again."
        )
    order = table["projection"].map({name: index for index, name in enumerate(PROJECTIONS)})
    table = table.assign(order=order).sort_values(["layer", "expert", "order"], ignore_index=True)
    return table.drop(columns="order")


def weight_statistics(model: MoEModel, store: StatsStore) -> Generator[Progress, None, Run]:
    """The model's weight statistics: from the cache, else measured and stored.

    Under a launcher the first process measures and the others wait, then read its result; one whose
    statistics directory lacks it, as on another machine, measures too.
    """
    if launched_world() > 1:
        from analysis.calibration.distributed import join  # imports torch

        if run := (yield from join().first_alone(_weight_statistics(model, store))):
            return run
    return (yield from _weight_statistics(model, store))


def _weight_statistics(model: MoEModel, store: StatsStore) -> Generator[Progress, None, Run]:
    if cached := store.of_model(model.identity, "weights"):
        run = cached[0]
        note = f"{run.manifest.run_id} is in the cache"
        yield Progress("cached", 1, 1, "", note, whole=NOTHING)
        return run
    store.check_target()
    started = time.monotonic()
    table = yield from measure_weights(model)
    digest = digest_of(
        {"kind": "weights", "model": model.identity, "schema_version": SCHEMA_VERSION}
    )
    manifest = RunManifest(
        kind="weights",
        run_id=run_name(Path(model.name).name, "weights", digest=digest),
        digest=digest,
        model=measured_model(model),
        corpora=(),
        settings={"dtype": model.dtype},
        made={
            "created_at": now(),
            "seconds": round(time.monotonic() - started, 3),
            "versions": {"numba": version("numba"), "numpy": np.__version__},
        },
    )
    return save_weight_stats(store.target, manifest, table)
