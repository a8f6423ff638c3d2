"""Weight statistics: L1 and L2 norms of every expert's matrices, streamed from safetensors.

No model is instantiated and no matrix is held whole: a shard is mapped, measured chunk by chunk,
and its pages are given back. Biases are left out.
"""

import mmap
import os
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np
import pandas as pd
import torch

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
_ITEM_BYTES = {"BF16": 2, "F16": 2, "F32": 4, "F64": 8}
_TORCH = {
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F32": torch.float32,
    "F64": torch.float64,
}
# Elements measured at once: each costs a fixed price of a dozen calls, so not too few.
_CHUNK = 1 << 20
_ROW = 4096
_WIDE = (torch.float32, torch.float64)
_GROUP_BYTES = 1 << 25  # handed to a thread at once, and given back at once


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


class _MappedShard:
    """A shard's bytes, mapped: read when touched, given back when measured."""

    def __init__(self, path: Path, size: int) -> None:
        # Touching a page beyond the end of a file kills the process, so the size is checked.
        if path.stat().st_size < size:
            raise CheckpointError(f"{path.name} became shorter while it was read.")
        with path.open("rb") as file:
            # A private copy: torch wants a buffer that it may write to.
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)

    def chunks(self, piece: _Piece) -> Iterator[torch.Tensor]:
        """The piece's elements, in order, a chunk at a time."""
        item = _ITEM_BYTES[piece.dtype]
        for start in range(piece.start, piece.end, _CHUNK * item):
            stop = min(start + _CHUNK * item, piece.end)
            # A header of odd length leaves the elements off their natural places.
            data = self._map if start % item == 0 else bytearray(self._map[start:stop])
            offset = start if start % item == 0 else 0
            yield torch.frombuffer(
                data, dtype=_TORCH[piece.dtype], count=(stop - start) // item, offset=offset
            )

    def release(self, start: int, stop: int) -> None:
        """Give the pages of a range back."""
        if hasattr(mmap, "MADV_DONTNEED"):
            aligned = start // mmap.PAGESIZE * mmap.PAGESIZE
            self._map.madvise(mmap.MADV_DONTNEED, aligned, stop - aligned)


class _Ruler:
    """Sums |w| and w^2, in buffers that are used again: fresh memory would cost more than the sums.

    bf16 goes through float32, row by row of 4,096 elements, which is exact to about 1e-7; all
    other types through float64. One for each thread.
    """

    def __init__(self) -> None:
        # One thread each: torch's own threads wait for one another wherever a core is busy.
        torch.set_num_threads(1)
        self._buffers = {dtype: torch.empty(_CHUNK, dtype=dtype) for dtype in _WIDE}

    def measure(self, group: Sequence[_Piece], shard: _MappedShard) -> list[tuple[float, float]]:
        """Both sums over each piece of a group of neighbours."""
        sums = [self._piece_sums(piece, shard) for piece in group]
        shard.release(group[0].start, group[-1].end)
        return sums

    def _piece_sums(self, piece: _Piece, shard: _MappedShard) -> tuple[float, float]:
        sums = [self._sums(chunk) for chunk in shard.chunks(piece)]
        return sum(first for first, _ in sums), sum(second for _, second in sums)

    def _sums(self, chunk: torch.Tensor) -> tuple[float, float]:
        narrow = chunk.dtype == torch.bfloat16
        wide = self._buffers[torch.float32 if narrow else torch.float64][: len(chunk)]
        wide.copy_(chunk).abs_()
        whole = len(wide) // _ROW * _ROW
        rows, tail = wide[:whole].view(-1, _ROW), wide[whole:].double()
        norms = torch.linalg.vector_norm(rows, dim=1).double()
        first = rows.sum(dim=1).double().sum() + tail.sum()
        second = norms @ norms + tail @ tail
        return float(first), float(second)


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


def _groups(pieces: Sequence[_Piece]) -> Iterator[tuple[_Piece, ...]]:
    """Neighbours in one shard, so that small experts do not cost a hand-over each."""
    for _, in_shard in groupby(pieces, key=lambda piece: piece.shard):
        group: list[_Piece] = []
        for piece in in_shard:
            group.append(piece)
            if piece.end - group[0].start >= _GROUP_BYTES:
                yield tuple(group)
                group = []
        if group:
            yield tuple(group)


@contextmanager
def _workers() -> Iterator[ThreadPoolExecutor]:
    """A pool whose threads run torch on one thread each; torch's own number is restored."""
    before = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
            yield pool
    finally:
        torch.set_num_threads(before)


def measure_weights(model: MoEModel) -> Generator[Progress, None, pd.DataFrame]:
    """Table `layer, expert, projection, l1, l2_squared, numel`: one row per expert matrix.

    l1 = sum |w|, l2_squared = sum w^2 (float64), numel = elements; projections gate, up, down.

    Raises:
        UnsupportedModelError: a quantised element type.
        CheckpointError: a shard became shorter, or holds values that are no finite numbers.
    """
    pieces = _pieces(model)
    total = sum(piece.end - piece.start for piece in pieces)
    names = dict.fromkeys(piece.shard for piece in pieces)
    sizes = {shard.name: shard.size for shard in model.checkpoint.shards}
    shards = {name: _MappedShard(model.checkpoint.path / name, sizes[name]) for name in names}
    local = threading.local()

    def measure(group: tuple[_Piece, ...]) -> list[tuple[float, float]]:
        if not hasattr(local, "ruler"):
            local.ruler = _Ruler()
        ruler: _Ruler = local.ruler
        return ruler.measure(group, shards[group[0].shard])

    sums: list[tuple[float, float]] = []
    done = 0
    groups = list(_groups(pieces))
    with _workers() as pool:
        for group, result in zip(groups, pool.map(measure, groups), strict=True):
            sums.extend(result)
            done += sum(piece.end - piece.start for piece in group)
            yield Progress("reading weights", done, total, "bytes")
    return _table(pieces, sums)


def weight_statistics(model: MoEModel, store: StatsStore) -> Generator[Progress, None, Run]:
    """The model's weight statistics: from the cache, else measured and stored."""
    if cached := store.of_model(model.identity, "weights"):
        run = cached[0]
        yield Progress("cached", 1, 1, "", f"{run.manifest.run_id} is in the cache")
        return run
    started = time.monotonic()
    table = yield from measure_weights(model)
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
