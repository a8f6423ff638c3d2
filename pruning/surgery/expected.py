"""What every tensor of an export must be: a second derivation from source and plan.

Verification must not trust the code that wrote the export. They share only the family's table, the
plan and the widths asked for; here numpy slices the bytes.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from analysis.checkpoint.fp8 import FP8_DTYPE, apply_scales, block_shape
from analysis.checkpoint.index import TensorEntry
from analysis.errors import ExportError
from analysis.families.base import MoEFamily, Slot, SlotKind
from analysis.model.moe_model import MoEModel
from analysis.model.widths import SCALE_ROLE, NeuronAxis, neuron_axis, scale_blocks, shared_tensors
from analysis.numbers.elements import as_float64, fp8_values
from pruning.plan.heads import HeadPlan
from pruning.plan.plan import PruningPlan
from pruning.plan.widths import WidthPlan
from pruning.records.repaired_tensors import RepairedTensor
from pruning.surgery.heads import HeadSlots, head_slots
from pruning.surgery.pieces import item_bytes
from pruning.surgery.reading import Files

_BLOCK_BYTES = 1 << 20
# Rows at least this long are read one by one; of shorter ones, all between the first and the last.
_LONG_BYTES = 512


@dataclass(frozen=True, slots=True, eq=False)
class TensorPart:
    """A matrix, or any run of bytes, of a source shard, and what the export holds of it."""

    start: int  # first byte
    shape: tuple[int, ...]  # in the source; the last axis is the bytes of one element
    axis: int = 0  # along which entries are chosen
    # The chosen entries in order, -1 for zeros; None if all stay.
    ids: NDArray[np.int64] | None = None
    filling: float = 0.0  # what stands where an id is -1
    dtype: str = ""  # of the element, where the filling is not zero

    @property
    def result(self) -> tuple[int, ...]:
        """The shape in the export, with the bytes of an element as the last axis."""
        if self.ids is None:
            return self.shape
        return (*self.shape[: self.axis], len(self.ids), *self.shape[self.axis + 1 :])

    @property
    def is_whole(self) -> bool:
        """Whether all of it stays in place."""
        return self.ids is None or np.array_equal(self.ids, np.arange(self.shape[self.axis]))

    def blocks(self, shard: Path, files: Files) -> Iterator[NDArray[np.uint8]]:
        """The bytes that the export must hold, a few rows at a time."""
        rows, row_bytes = self.result[0], math.prod(self.shape[1:])
        step = max(1, _BLOCK_BYTES // max(1, math.prod(self.result[1:]), row_bytes))
        for first in range(0, rows, step):
            last = min(rows, first + step)
            if self.ids is not None and self.axis == 0:
                yield self._fill(self._rows(shard, files, self.ids[first:last]), first, last)
                continue
            shape = (last - first, *self.shape[1:])
            block = files.read(shard, self.start + first * row_bytes, shape)
            chosen = block if self.ids is None else _select(block, self.ids, self.axis)
            yield self._fill(chosen, 0, None)

    def _rows(self, shard: Path, files: Files, ids: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Rows of these ids, and zeros where an id is -1; no other long rows are read."""
        inner = self.shape[1:]
        row_bytes = math.prod(inner)
        rows = np.zeros((len(ids), *inner), np.uint8)
        stays = np.flatnonzero(ids >= 0)
        # Runs of consecutive ids in consecutive places; of short rows, one run of all.
        breaks = np.flatnonzero((np.diff(ids[stays]) != 1) | (np.diff(stays) != 1)) + 1
        if row_bytes < _LONG_BYTES and len(breaks):
            least, most = int(ids[stays].min()), int(ids[stays].max())
            block = files.read(shard, self.start + least * row_bytes, (most + 1 - least, *inner))
            rows[stays] = block[ids[stays] - least]
            return rows
        for run in np.split(stays, breaks):
            if len(run):
                start = self.start + int(ids[run[0]]) * row_bytes
                rows[run[0] : run[-1] + 1] = files.read(shard, start, (len(run), *inner))
        return rows

    def _fill(self, chosen: NDArray[np.uint8], first: int, last: int | None) -> NDArray[np.uint8]:
        if self.filling and self.ids is not None:
            # float32 has the bits of bfloat16 first, in the upper half.
            kinds = {"F16": "<f2", "F32": "<f4", "BF16": "<f4", "F64": "<f8"}
            element = np.array([self.filling], kinds[self.dtype]).view(np.uint8)
            places = (slice(None),) * self.axis + (self.ids[first:last] < 0,)
            chosen[places] = element[-chosen.shape[-1] :]
        return chosen


@dataclass(frozen=True, slots=True)
class Table:
    """A table with a row of expert ids per token id, and what the export holds of it."""

    entry: TensorEntry  # in the source
    kept: tuple[int, ...]  # original ids in their new order, -1 where the layer is filled up
    is_whole = False

    def blocks(self, shard: Path, files: Files) -> Iterator[NDArray[np.uint8]]:
        """The bytes that the export must hold."""
        width = {"I64": 8, "I32": 4}.get(self.entry.dtype)
        if width is None:
            raise ExportError(f"{self.entry.name} of type {self.entry.dtype} holds no ids.")
        raw = files.read(shard, self.entry.start, (*self.entry.shape, width))
        rows = raw.view(f"<i{width}")[..., 0].tolist()
        stays = [expert for expert in self.kept if expert >= 0]
        for token, row in enumerate(rows):
            for place, expert in enumerate(row):
                if expert not in stays:
                    at = token + expert
                    while stays[at % len(stays)] in row:
                        at += 1
                    row[place] = stays[at % len(stays)]
        new = {expert: place for place, expert in enumerate(self.kept)}
        yield np.array([[new[expert] for expert in row] for row in rows], f"<i{width}").view("u1")


@dataclass(frozen=True, slots=True)
class InBfloat16:
    """An FP8 matrix and its scales, which the export holds as BF16."""

    entry: TensorEntry  # in the source
    grid: TensorEntry  # its scales
    block: tuple[int, int]
    folder: Path  # of the source
    is_whole = True

    def blocks(self, shard: Path, files: Files) -> Iterator[NDArray[np.uint8]]:
        """The bytes that the export must hold, a row of blocks at a time."""
        size = (*self.grid.shape, item_bytes(self.grid.dtype))
        raw = files.read(self.folder / self.grid.shard, self.grid.start, size)
        scales = as_float64(raw.tobytes(), self.grid.dtype).reshape(self.grid.shape)
        height, width = self.entry.shape
        for number, scales_c in enumerate(scales):
            first = number * self.block[0]
            shape = (min(self.block[0], height - first), width)
            rows = files.read(shard, self.entry.start + first * width, shape)
            values = fp8_values(rows)
            apply_scales(values, scales_c.astype(np.float32)[None, :], (len(rows), self.block[1]))
            # Nearest number of 8 bits, the even one of two: by arithmetic, not by bits.
            exact = values.astype(np.float64)
            step = np.exp2(np.maximum(np.frexp(exact)[1], -125) - 8.0)
            nearest = (np.rint(exact / step) * step).astype("<f4")
            halves = nearest.view("<u2").reshape(*rows.shape, 2)[..., 1]
            bits = np.where(np.isnan(nearest), np.uint16(0x7FC0), halves)
            yield bits.astype("<u2").view(np.uint8)


def _select(block: NDArray[np.uint8], ids: NDArray[np.int64], axis: int) -> NDArray[np.uint8]:
    if not block.shape[axis]:  # an expert without neurons
        return np.zeros((*block.shape[:axis], len(ids), *block.shape[axis + 1 :]), np.uint8)
    subset = np.take(block, np.maximum(ids, 0), axis)
    subset[(slice(None),) * axis + (ids < 0,)] = 0
    return subset


@dataclass(frozen=True, slots=True)
class ExpectedTensor:
    """A tensor that an export must hold."""

    name: str  # in the export
    source: TensorEntry  # where it comes from
    shape: tuple[int, ...]
    parts: tuple[TensorPart | Table | InBfloat16, ...]  # its bytes, in order
    dtype: str
    is_repaired: bool = False
    # The repair's file that its bytes come from; None: the source's shard, or it is elsewhere.
    file: Path | None = None

    @property
    def is_known(self) -> bool:
        """Whether its bytes are here."""
        return self.file is not None or not self.is_repaired

    @property
    def is_dequantised(self) -> bool:
        """Whether it is FP8 in the source."""
        return any(isinstance(part, InBfloat16) for part in self.parts)

    @property
    def is_cut(self) -> bool:
        """Whether it is cut from the source, and more than a copy, renamed or not."""
        if self.is_repaired:
            return False
        return self.shape != self.source.shape or not all(part.is_whole for part in self.parts)


def expected_tensors(  # noqa: PLR0913  (all that decides an export)
    model: MoEModel,
    plan: PruningPlan,
    heads: HeadPlan,
    widths: WidthPlan | None,
    *,
    padded: bool = False,
    dequantised: bool = False,
    repairs: Mapping[str, RepairedTensor | None] = MappingProxyType({}),
) -> dict[str, ExpectedTensor]:
    """Every tensor that an export must hold, by its name there; others are dropped.

    The plan is complete, see `fit_plan`; `widths` are for plans that remove neurons; `padded`:
    layers that keep fewer experts are filled up with -1 in place of ids; `dequantised`: FP8 is in
    BF16; `repairs` has the tensors of the source with new bytes, None where these are elsewhere.
    """
    slots = head_slots(model, heads)
    kept = {layer.index: plan.kept[layer.index] for layer in model.layers}
    if padded:
        most = max(map(len, kept.values()))
        groups = {layer.index: layer.num_groups for layer in model.layers}
        for layer, stays in kept.items():
            rows = np.array(stays).reshape(groups[layer], -1)
            more = ((0, 0), (0, most // groups[layer] - rows.shape[1]))
            kept[layer] = tuple(np.pad(rows, more, constant_values=-1).reshape(-1).tolist())
    counts = {layer.index: layer.num_experts for layer in model.layers}
    maker = _Maker(model.family, kept, counts, slots, widths, scale_blocks(model))
    grown = shared_tensors(model) if widths and widths.shared is not None else {}
    tensors: dict[str, ExpectedTensor] = {}
    in_bf16 = _in_bfloat16(model) if dequantised else {}
    scales = {matrix.grid.name for matrix in in_bf16.values()}
    for entry in model.checkpoint.tensors.values():
        if entry.name in scales:
            continue
        if entry.name in grown and widths:
            # Shared experts grow to a multiple of the new width.
            axis, after = grown[entry.name][1], (widths.shared or 0) * widths.scalar
            ids = np.arange(after)
            ids[entry.shape[axis] :] = -1
            part = _cut(entry.start, entry, entry.shape, axis, ids)
            is_unchanged = entry.shape[axis] == after
            resized = ExpectedTensor(entry.name, entry, part.result[:-1], (part,), entry.dtype)
            tensors[entry.name] = _copy(entry, entry.name) if is_unchanged else resized
            continue
        new = repairs.get(entry.name)
        if tensor := maker.make(new.entry if new else entry):
            matrix = in_bf16.get(entry.name)
            if entry.name in repairs:
                file = new.file if new else None
                tensor = replace(tensor, source=entry, is_repaired=True, file=file)
            elif matrix:
                tensor = replace(tensor, parts=(matrix,))
            tensors[tensor.name] = replace(tensor, dtype="BF16") if matrix else tensor
            tensors |= {
                filler.name: filler for filler in maker.empty(entry, in_bf16=matrix is not None)
            }
    keeps_all = all(len(plan.kept[layer]) == number for layer, number in counts.items())
    is_source = keeps_all and not plan.kept_neurons and not plan.top_k
    return tensors if is_source else tensors | _own_head(model)


def _in_bfloat16(model: MoEModel) -> dict[str, InBfloat16]:
    """The FP8 matrices of a checkpoint, by name."""
    tensors, found = model.checkpoint.tensors, {}
    for entry in tensors.values():
        grid = tensors.get(f"{entry.name}_scale_inv")
        block = block_shape(entry.shape, grid.shape, model.stated_block) if grid else None
        if entry.dtype == FP8_DTYPE and grid and block and len(block) == 2:
            size = (block[0], block[1])
            found[entry.name] = InBfloat16(entry, grid, size, model.checkpoint.path)
    return found


def _own_head(model: MoEModel) -> dict[str, ExpectedTensor]:
    """The head as a copy of the embedding, if engines cannot tie the two."""
    tensors, tied = model.checkpoint.tensors, model.config.get("tie_word_embeddings")
    if not (model.family.needs_own_head and tied) or "lm_head.weight" in tensors:
        return {}
    return {"lm_head.weight": _copy(tensors["model.embed_tokens.weight"], "lm_head.weight")}


@dataclass(frozen=True, slots=True)
class _Maker:
    family: MoEFamily
    kept: Mapping[int, Sequence[int]]
    counts: Mapping[int, int]  # layer -> experts in the source
    heads: HeadSlots
    widths: WidthPlan | None
    blocks: tuple[int, int] | None

    def make(self, entry: TensorEntry) -> ExpectedTensor | None:
        """The tensor in the export; None if it is dropped."""
        if entry.name in self.heads.dropped:
            return None
        if in_head := self.heads.cut.get(entry.name):
            return self._of_experts(entry, *in_head, None)
        slot = self.family.locate(entry.name)
        if slot is None or slot.layer not in self.kept:
            return _copy(entry, entry.name)
        return self._of_experts(entry, slot, self.kept[slot.layer], self.widths)

    def empty(self, entry: TensorEntry, *, in_bf16: bool) -> Iterator[ExpectedTensor]:
        """Tensors of zeros, shaped like those of the first expert that stays."""
        slot = self.family.locate(entry.name)
        if slot is None or slot.kind is not SlotKind.EXPERT or entry.name in self.heads.cut:
            return
        ids = self.kept.get(slot.layer, ())
        if -1 not in ids or slot.expert != min(id for id in ids if id >= 0):
            return
        parts = (_cut(entry.start, entry, entry.shape, 0, np.full(entry.shape[0], -1)),)
        for place in np.flatnonzero(np.array(ids) < 0).tolist():
            name = slot.template.format(expert=place)
            dtype = "BF16" if in_bf16 else entry.dtype
            # The zeros twice, as BF16 has two bytes for one of FP8.
            yield ExpectedTensor(name, entry, entry.shape, parts * (1 + in_bf16), dtype)

    def _of_experts(
        self, entry: TensorEntry, slot: Slot, kept: Sequence[int], widths: WidthPlan | None
    ) -> ExpectedTensor | None:
        if slot.holds_ids:
            if list(kept) == list(range(self.counts[slot.layer])):
                return _copy(entry, entry.name)
            table = Table(entry, tuple(kept))
            return ExpectedTensor(entry.name, entry, entry.shape, (table,), entry.dtype)
        if slot.kind is SlotKind.ROUTER:
            part = _cut(entry.start, entry, entry.shape, slot.axis, np.array(kept))
            if slot.role.endswith("bias"):
                part = replace(part, filling=-10_000.0, dtype=entry.dtype)
            return ExpectedTensor(entry.name, entry, part.result[:-1], (part,), entry.dtype)
        where = neuron_axis(self.family, slot) if widths else None
        if slot.expert is None:
            parts = tuple(_matrix(entry, where, slot, expert, widths) for expert in kept)
            cut = next((part.result[:-1] for part in parts if part.ids is not None), None)
            shape = (len(parts), *(cut or entry.shape[1:]))
            return ExpectedTensor(entry.name, entry, shape, parts, entry.dtype)
        if slot.expert not in kept:
            return None
        # The new id of an expert is its place among the kept ones.
        name = slot.template.format(expert=list(kept).index(slot.expert))
        if where is None:
            return _copy(entry, name)
        if slot.role == SCALE_ROLE and widths and self.blocks:
            part = _scales(entry, where, slot, widths, self.blocks[where.axis])
        else:
            part = _matrix(entry, where, slot, slot.expert, widths)
        shape = entry.shape if part.ids is None else part.result[:-1]
        return ExpectedTensor(name, entry, shape, (part,), entry.dtype)


def _copy(entry: TensorEntry, name: str) -> ExpectedTensor:
    whole = TensorPart(entry.start, (entry.nbytes,))
    return ExpectedTensor(name, entry, entry.shape, (whole,), entry.dtype)


def _cut(
    start: int, entry: TensorEntry, shape: Sequence[int], axis: int, ids: NDArray[np.int64]
) -> TensorPart:
    """Chosen entries of the elements from `start` on, in whole bytes."""
    if entry.numel and entry.nbytes % entry.numel:
        # Elements of 0 bytes would compare nothing and pass.
        raise ExportError(
            f"{entry.name}: elements of type {entry.dtype} cannot be compared one by one."
        )
    size = entry.nbytes // entry.numel if entry.numel else item_bytes(entry.dtype)
    return TensorPart(start, (*shape, size), axis, ids)


def _matrix(
    entry: TensorEntry, where: NeuronAxis | None, slot: Slot, expert: int, widths: WidthPlan | None
) -> TensorPart:
    """What stays of one expert's matrix or bias, in its own tensor or a stacked one."""
    inner = entry.shape if slot.expert is not None else entry.shape[1:]
    size = entry.nbytes if slot.expert is not None else entry.nbytes // entry.shape[0]
    start = entry.start if slot.expert is not None else entry.start + expert * size
    if expert < 0:
        return _cut(entry.start, entry, inner, 0, np.full(inner[0], -1))
    if where is None or widths is None:
        return TensorPart(start, (size,))
    before, after = widths.source[slot.layer][expert], widths.stored_width(slot.layer, expert)
    kept = widths.kept(slot.layer, expert)
    if len(kept) == before == after:
        return TensorPart(start, (size,))
    axis = where.axis - (len(entry.shape) - len(inner))
    # Kept entries of an axis of `parts` projections, each padded with -1 at its end.
    shape = (before, where.parts) if where.interleaved else (where.parts, before)
    grid = np.arange(where.parts * before).reshape(shape)
    grid = (grid.T if where.interleaved else grid)[:, list(kept)]
    padded = np.pad(grid, ((0, 0), (0, after - len(kept))), constant_values=-1)
    ids = (padded.T if where.interleaved else padded).reshape(-1)
    return _cut(start, entry, inner, axis, ids)


def _scales(
    entry: TensorEntry, where: NeuronAxis, slot: Slot, widths: WidthPlan, size: int
) -> TensorPart:
    """What stays of an FP8 matrix's scales: for each `size` neurons, that of the first."""
    expert = slot.expert or 0
    kept, after = widths.kept(slot.layer, expert), widths.stored_width(slot.layer, expert)
    firsts = range(0, after, size)
    ids = [kept[first] // size if first < len(kept) else -1 for first in firsts]
    if ids == list(range(entry.shape[where.axis])):
        return TensorPart(entry.start, (entry.nbytes,))
    return _cut(entry.start, entry, entry.shape, where.axis, np.array(ids))
