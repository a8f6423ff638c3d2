"""Weight statistics: L1 and L2 norms of every expert's matrices, streamed from safetensors.

No model is instantiated and no tensor is held whole: each worker reads a fixed buffer from the
shard and adds float32 partial sums of 4,096 elements into float64. Biases are left out.
"""

import os
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.errors import CheckpointError, UnsupportedModelError
from analysis.families import PROJECTIONS, SlotKind
from analysis.model import LocatedTensor, MoEModel
from analysis.progress import Progress
from analysis.stats import SCHEMA_VERSION, RunManifest, model_ref
from analysis.store import Run, StatsStore, digest_of, now, run_name, save_weight_stats

WEIGHT_COLUMNS = {
    "layer": "int64",
    "expert": "int64",
    "projection": "object",
    "l1": "float64",
    "l2_squared": "float64",
    "numel": "int64",
}
_BUFFER_BYTES = 1 << 18  # stays in a core's cache between the read and the sums
_ROW = 4096
_ITEM_BYTES = {"BF16": 2, "F16": 2, "F32": 4, "F64": 8}
_GROUP_BYTES = 1 << 23  # work handed to a thread at once
_ONES = np.ones(_ROW, dtype=np.float32)

# (raw bytes, scratch words) -> (sum |w|, sum w^2)
_SumsOf = Callable[[NDArray[np.uint8], NDArray[np.uint32]], tuple[float, float]]


@dataclass(frozen=True, slots=True)
class _Piece:
    """A byte range that holds elements of one projection of one expert."""

    layer: int
    expert: int
    projection: str
    shard: str
    dtype: str
    start: int
    end: int

    @property
    def numel(self) -> int:
        return (self.end - self.start) // _ITEM_BYTES[self.dtype]


def _absolute_sums(absolute: NDArray[np.float32]) -> tuple[float, float]:
    """Sum and sum of squares of values that are >= 0."""
    whole = len(absolute) // _ROW * _ROW
    rows = absolute[:whole].reshape(-1, _ROW)
    tail = absolute[whole:].astype(np.float64)
    # vecdot runs at memory speed and on this thread only; sum() is three times slower.
    first = np.vecdot(rows, _ONES).sum(dtype=np.float64) + tail.sum()
    second = np.vecdot(rows, rows).sum(dtype=np.float64) + tail @ tail
    return float(first), float(second)


def _bf16_sums(raw: NDArray[np.uint8], scratch: NDArray[np.uint32]) -> tuple[float, float]:
    if len(raw) % 4:  # an odd number of elements: the last one alone
        last = raw[-2:].view("<u2").astype(np.uint32) << 16
        value = abs(float(last.view(np.float32)[0]))
        first, second = _bf16_sums(raw[:-2], scratch)
        return first + value, second + value * value
    # Two bf16 share a 32-bit word; each, moved to the upper half with its sign cut off, is the
    # float32 of its absolute value.
    words = raw.view("<u4")
    upper = np.bitwise_and(words, 0x7FFF0000, out=scratch[: len(words)])
    first_upper, second_upper = _absolute_sums(upper.view(np.float32))
    lower = np.left_shift(words, 16, out=scratch[: len(words)])
    np.bitwise_and(lower, 0x7FFFFFFF, out=lower)
    first_lower, second_lower = _absolute_sums(lower.view(np.float32))
    return first_upper + first_lower, second_upper + second_lower


def _other_sums(
    kind: str,
) -> Callable[[NDArray[np.uint8], NDArray[np.uint32]], tuple[float, float]]:
    def sums(raw: NDArray[np.uint8], scratch: NDArray[np.uint32]) -> tuple[float, float]:
        del scratch
        values = np.abs(raw.view(kind).astype(np.float64))
        return float(values.sum()), float(values @ values)

    return sums


_SUMS = {
    "BF16": _bf16_sums,
    "F16": _other_sums("<f2"),
    "F32": _other_sums("<f4"),
    "F64": _other_sums("<f8"),
}


def _measure(piece: _Piece, file: int) -> tuple[float, float]:
    raw = np.empty(_BUFFER_BYTES, dtype=np.uint8)
    buffer = memoryview(raw.data)
    scratch = np.empty(_BUFFER_BYTES // 4, dtype=np.uint32)
    sums = _SUMS[piece.dtype]
    l1 = l2_squared = 0.0
    position = piece.start
    while position < piece.end:
        want = min(_BUFFER_BYTES, piece.end - position)
        if os.preadv(file, [buffer[:want]], position) != want:
            raise CheckpointError(f"{piece.shard} became shorter while it was read.")
        first, second = sums(raw[:want], scratch)
        l1, l2_squared, position = l1 + first, l2_squared + second, position + want
    return l1, l2_squared


def _stacked_pieces(tensor: LocatedTensor) -> Iterator[_Piece]:
    entry, slot = tensor.entry, tensor.slot
    experts = entry.shape[0]
    parts = ("gate", "up") if slot.projection == "gate_up" else (slot.projection,)
    step = entry.nbytes // experts // len(parts)
    starts = range(entry.start, entry.end, step)
    for number, start in enumerate(starts):  # of each expert, the gate rows come first
        expert, part = divmod(number, len(parts))
        yield _Piece(slot.layer, expert, parts[part], entry.shard, entry.dtype, start, start + step)


def _tensor_pieces(tensor: LocatedTensor) -> Iterator[_Piece]:
    entry, slot = tensor.entry, tensor.slot
    if slot.kind is SlotKind.STACKED:
        yield from _stacked_pieces(tensor)
    elif slot.expert is not None and entry.name.endswith(".weight"):
        yield _Piece(
            slot.layer,
            slot.expert,
            slot.projection,
            entry.shard,
            entry.dtype,
            entry.start,
            entry.end,
        )


def _pieces(model: MoEModel) -> list[_Piece]:
    pieces = [
        piece
        for layer in model.layers
        for tensor in model.located[layer.index]
        for piece in _tensor_pieces(tensor)
    ]
    for piece in pieces:
        if piece.dtype not in _ITEM_BYTES:
            raise UnsupportedModelError(
                f"Expert weights of type {piece.dtype} in {piece.shard} cannot be measured; "
                f"supported: {', '.join(_ITEM_BYTES)}. Dequantise the checkpoint first."
            )
    return sorted(pieces, key=lambda piece: (piece.shard, piece.start))


def _groups(pieces: list[_Piece]) -> Iterator[list[_Piece]]:
    """Neighbours together, so that small experts do not cost a hand-over each."""
    group: list[_Piece] = []
    for piece in pieces:
        group.append(piece)
        if sum(part.end - part.start for part in group) >= _GROUP_BYTES:
            yield group
            group = []
    if group:
        yield group


def _table(pieces: list[_Piece], sums: list[tuple[float, float]]) -> pd.DataFrame:
    rows = [
        (piece.layer, piece.expert, piece.projection, l1, l2_squared, piece.numel)
        for piece, (l1, l2_squared) in zip(pieces, sums, strict=True)
    ]
    table = pd.DataFrame(rows, columns=list(WEIGHT_COLUMNS)).astype(WEIGHT_COLUMNS)
    bad = table[~np.isfinite(table["l2_squared"])]
    if len(bad):
        layer, expert, projection = bad[["layer", "expert", "projection"]].iloc[0]
        raise CheckpointError(
            f"The {projection} projection of expert {expert} in layer {layer} holds values that "
            "are no finite numbers; fetch the checkpoint again."
        )
    order = table["projection"].map({name: index for index, name in enumerate(PROJECTIONS)})
    return (
        table.assign(order=order)
        .sort_values(["layer", "expert", "order"], ignore_index=True)
        .drop(columns="order")
    )


def measure_weights(
    model: MoEModel, *, threads: int | None = None
) -> Generator[Progress, None, pd.DataFrame]:
    """Table `layer, expert, projection, l1, l2_squared, numel`: one row per expert matrix.

    l1 = sum |w|, l2_squared = sum w^2 (float64), numel = elements; projections gate, up, down.

    Raises:
        UnsupportedModelError: a quantised element type.
        CheckpointError: a shard became shorter, or holds values that are no finite numbers.
    """
    pieces = _pieces(model)
    total = sum(piece.end - piece.start for piece in pieces)
    sums: list[tuple[float, float]] = []
    done = 0
    with ExitStack() as stack:
        files = {
            shard.name: stack.enter_context((model.checkpoint.path / shard.name).open("rb"))
            for shard in model.checkpoint.shards
        }
        pool = stack.enter_context(ThreadPoolExecutor(threads or min(8, os.cpu_count() or 1)))

        def measure(group: list[_Piece]) -> list[tuple[float, float]]:
            return [_measure(piece, files[piece.shard].fileno()) for piece in group]

        groups = list(_groups(pieces))
        for group, result in zip(groups, pool.map(measure, groups), strict=True):
            sums.extend(result)
            done += sum(piece.end - piece.start for piece in group)
            yield Progress("reading weights", done, total, "bytes")
    return _table(pieces, sums)


def weight_statistics(
    model: MoEModel, store: StatsStore, *, threads: int | None = None
) -> Generator[Progress, None, Run]:
    """The model's weight statistics: from the cache, else measured and stored."""
    if cached := store.of_model(model.identity, "weights"):
        run = cached[0]
        yield Progress("cached", 1, 1, "", f"{run.manifest.run_id} is in the cache")
        return run
    started = time.monotonic()
    table = yield from measure_weights(model, threads=threads)
    digest = digest_of(
        {"kind": "weights", "model": model.identity, "schema_version": SCHEMA_VERSION}
    )
    manifest = RunManifest(
        kind="weights",
        run_id=run_name(Path(model.name).name, "weights", digest=digest),
        digest=digest,
        model=model_ref(model),
        corpora=(),
        settings={"dtype": model.dtype},
        made={
            "created_at": now(),
            "seconds": round(time.monotonic() - started, 3),
            "versions": {"numpy": np.__version__},
        },
    )
    return save_weight_stats(store.target, manifest, table)
