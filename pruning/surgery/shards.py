"""Plans pruned shards: a new header and pieces of the source. No weights are read.

Pruning never computes with weights: it moves bytes of any dtype.
"""

import json
import math
import struct
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from analysis.checkpoint.headers import read_index
from analysis.checkpoint.index import INDEX_NAME, ITEM_BYTES, Shard, TensorEntry
from analysis.errors import ExportError
from analysis.families.base import Slot, SlotKind
from analysis.model.fp8_matrices import Fp8Matrix
from analysis.model.moe_model import OUTPUT_HEAD, MoEModel
from analysis.model.other_files import other_files
from analysis.model.widths import SCALE_ROLE, scale_blocks
from pruning.plan.heads import HeadPlan
from pruning.plan.plan import PruningPlan, untied_embedding
from pruning.plan.widths import WidthPlan
from pruning.records.repaired_tensors import RepairedTensor, repaired_tensors
from pruning.surgery.config import json_file
from pruning.surgery.dequantising import BF16, Dequantisation
from pruning.surgery.heads import head_slots
from pruning.surgery.padding import EMPTY, Ids, Padding, is_matrix, never
from pruning.surgery.pieces import Dequantise, Fill, Gather, Piece, Renumber, Span
from pruning.surgery.widths import check_scales, resized_experts, resized_scale, resized_shared


@dataclass(frozen=True, slots=True)
class PlannedTensor:
    """A tensor of the pruned checkpoint."""

    source: TensorEntry  # where it comes from
    name: str  # in the pruned checkpoint
    shape: tuple[int, ...]  # in the pruned checkpoint
    spans: tuple[Piece, ...]  # its bytes, in order
    dtype: str  # in the pruned checkpoint
    repaired: Path | None = None  # the repair's file that they are in; None: the source's shard

    @property
    def item_bytes(self) -> int:
        """Bytes of an element, 0 for less than one."""
        if self.dtype != self.source.dtype:
            return ITEM_BYTES[self.dtype]
        return self.source.nbytes // (self.source.numel or 1)

    @property
    def is_dequantised(self) -> bool:
        """Whether its bytes are the source's FP8 in another type."""
        return any(isinstance(piece, Dequantise) for piece in self.spans)

    @property
    def place(self) -> tuple[Path | None, str]:
        """Folder, None for the source's, and name of the file where its bytes are read."""
        if self.repaired:
            return self.repaired.parent, self.repaired.name
        return None, self.source.shard

    @property
    def nbytes(self) -> int:
        """Bytes in the pruned checkpoint."""
        return sum(span.nbytes for span in self.spans)

    @property
    def is_cut(self) -> bool:
        """Whether it is cut from the source: neurons may be zeros with the shape unchanged."""
        if self.repaired:
            return False
        gathered = any(isinstance(piece, Gather | Fill | Renumber) for piece in self.spans)
        return gathered or self.shape != self.source.shape


@dataclass(frozen=True, slots=True)
class ShardReading:
    """What is read of one file, in order."""

    source: str  # file name
    pieces: tuple[Piece, ...]
    folder: Path | None = None  # of a repair; None: the source's

    @property
    def nbytes(self) -> int:
        """Bytes that come out."""
        return sum(piece.nbytes for piece in self.pieces)


@dataclass(frozen=True, slots=True)
class PlannedShard:
    """A shard of the pruned checkpoint, before a byte of it is written."""

    name: str  # file name, the source's unless the layout is new
    prefix: bytes  # length and header; empty for a shard copied whole
    readings: tuple[ShardReading, ...]  # the bytes that follow, source by source
    tensors: tuple[PlannedTensor, ...]  # in the order of their bytes
    cut: int  # tensors that lost experts or neurons, or were padded with zeros
    dropped: int  # tensors of its source that are left out

    @property
    def repaired(self) -> int:
        """Tensors with the bytes of a repair."""
        return sum(bool(tensor.repaired) for tensor in self.tensors)

    @property
    def dequantised(self) -> int:
        """Tensors that are FP8 in the source."""
        return sum(tensor.is_dequantised for tensor in self.tensors)

    @property
    def nbytes(self) -> int:
        """Size of the file."""
        return len(self.prefix) + sum(reading.nbytes for reading in self.readings)


def check_located(model: MoEModel) -> None:
    """Refuse a checkpoint with tensors of experts or routers that the family cannot cut."""
    layers = {layer.index for layer in model.layers}
    for name in model.checkpoint.tensors:
        index = model.family.routed_layer(name)
        if index is None and (block := model.family.block_layer(name)) in layers:
            index = block
        # A module on the path is called experts, in whatever block.
        sounds_routed = index is None and any(
            "experts" in part and "shared" not in part for part in name.split(".")
        )
        for trunk in model.family.trunks if sounds_routed else ():
            inside = name.removeprefix(f"{trunk}.")
            if inside != name and (number := inside.partition(".")[0]).isdigit():
                index = int(number)
                break
        # Layers beyond the trunk are prediction heads; they are copied as they are.
        if index is None or index >= model.depth:
            continue
        if index not in layers:
            raise ExportError(
                f"{name} belongs to experts, but config.json makes layer {index} dense; "
                "fix config.json or fetch the checkpoint again."
            )
        if name not in model.slots:
            raise ExportError(
                f"{name} belongs to the experts of layer {index}, but the family "
                f"{model.family.label} does not say how to prune it; nothing was written."
            )


def _entries(
    entry: TensorEntry, axis: int, kept: Sequence[int], empty: bytes = b"\0"
) -> tuple[Piece, ...]:
    """Byte ranges of the kept entries along an axis; neighbours share one.

    An entry that is EMPTY consists of the element `empty`.
    """
    count, outer = entry.shape[axis], math.prod(entry.shape[:axis])
    size = entry.nbytes // (outer * count)
    if size * outer * count != entry.nbytes:
        raise ExportError(
            f"The rows of {entry.name} do not fall on whole bytes, so it cannot be cut."
        )
    return _join(
        Fill(empty, size)
        if one == EMPTY
        else Span(start := entry.start + (row * count + one) * size, start + size)
        for row in range(outer)
        for one in kept
    )


def _join(spans: Iterable[Piece]) -> tuple[Piece, ...]:
    """The same bytes in as few ranges as possible."""
    joined: list[Piece] = []
    for span in spans:
        last = joined[-1] if joined else None
        if isinstance(span, Span) and isinstance(last, Span) and last.end == span.start:
            joined[-1] = Span(last.start, span.end)
        else:
            joined.append(span)
    return tuple(joined)


_IDS = {"I64": "<i8", "I32": "<i4"}


def _renumber(
    entry: TensorEntry, kept: tuple[int, ...], counts: Mapping[int, int], layer: int
) -> tuple[Piece, ...]:
    """A table of token ids for the experts that stay."""
    if layer not in counts:
        raise ExportError(f"{entry.name} of a prediction head cannot be cut; use --mtp drop.")
    if kept == tuple(range(counts[layer])):
        return (Span(entry.start, entry.end),)
    if entry.dtype not in _IDS or len(entry.shape) != 2:
        raise ExportError(
            f"{entry.name} should be a table of expert ids, but has the type {entry.dtype} and the "
            f"shape {entry.shape}; nothing was written."
        )
    rows, count = entry.shape
    return (Renumber(entry.start, rows, count, _IDS[entry.dtype], kept, counts[layer]),)


def plan_tensor(
    entry: TensorEntry,
    slot: Slot | None,
    kept: tuple[int, ...] | None,
    counts: Mapping[int, int] | None = None,
) -> PlannedTensor | None:
    """One tensor in the export; None if its expert is removed.

    `slot` is its place in the grid of experts, if it has one; `kept` are the kept experts of its
    layer, None outside the sparse layers of the trunk; `counts` are the experts of these in the
    source, which only tables of token ids need.
    """
    all_bytes = (Span(entry.start, entry.end),)
    if slot is None or kept is None:
        return PlannedTensor(entry, entry.name, entry.shape, all_bytes, entry.dtype)
    if slot.holds_ids:
        pieces = _renumber(entry, kept, counts or {}, slot.layer)
        return PlannedTensor(entry, entry.name, entry.shape, pieces, entry.dtype)
    if slot.kind is SlotKind.EXPERT:
        if slot.expert not in kept:
            return None
        name = slot.template.format(expert=kept.index(slot.expert))
        return PlannedTensor(entry, name, entry.shape, all_bytes, entry.dtype)
    shape = (*entry.shape[: slot.axis], len(kept), *entry.shape[slot.axis + 1 :])
    is_added = slot.kind is SlotKind.ROUTER and not is_matrix(slot.role) and EMPTY in kept
    empty = never(entry.dtype) if is_added else b"\0"
    pieces = _entries(entry, slot.axis, kept, empty)
    return PlannedTensor(entry, entry.name, shape, pieces, entry.dtype)


def _empty_experts(tensor: PlannedTensor, slot: Slot | None, kept: Ids) -> Iterator[PlannedTensor]:
    """Tensors of zeros like this one, if it is of the first expert, for those that are EMPTY."""
    ids = kept.get(slot.layer) if slot and slot.kind is SlotKind.EXPERT else None
    if slot and ids and slot.expert == ids[0]:
        zeros = (Fill(b"\0", tensor.nbytes),)
        for place, expert in enumerate(ids):
            if expert == EMPTY:
                name = slot.template.format(expert=place)
                yield replace(tensor, name=name, spans=zeros, repaired=None)


def plan_shards(  # noqa: PLR0913  (all that decides an export)
    model: MoEModel,
    plan: PruningPlan,
    heads: HeadPlan | None = None,
    widths: WidthPlan | None = None,
    padding: Padding | None = None,
    dequantisation: Dequantisation | None = None,
) -> tuple[PlannedShard, ...]:
    """The shards that an export writes, without those of which nothing is left.

    The plan is complete, see `fit_plan`; heads are kept by default; `widths` are for plans that
    remove neurons; `padding` fills up layers that keep fewer experts; `dequantisation` is for
    exports of FP8 in BF16.
    """
    check_located(model)
    check_scales(model, widths)
    blocks = scale_blocks(model) if widths else None
    shared = resized_shared(model, widths) if widths else {}
    slots = head_slots(model, heads or HeadPlan())
    ids_of = padding.ids if padding else plan.kept
    kept = {layer.index: ids_of[layer.index] for layer in model.layers}
    counts = {layer.index: layer.num_experts for layer in model.layers}
    tied = untied_embedding(model, plan)
    repairs = repaired_tensors(plan.repair)
    in_bf16 = dequantisation or Dequantisation()
    dropped = slots.dropped | in_bf16.scales

    def target(entry: TensorEntry) -> PlannedTensor | None:
        if entry.name in dropped:
            return None
        if entry.name in slots.cut:
            return plan_tensor(entry, *slots.cut[entry.name])
        slot = model.slots.get(entry.name)
        ids = kept.get(slot.layer) if slot else None
        target = plan_tensor(entry, slot, ids, counts)
        resized = shared.get(entry.name)
        if widths and target and slot and ids:
            if slot.role == SCALE_ROLE and blocks:
                resized = resized_scale(entry, slot, model.family, widths, blocks)
            else:
                resized = resized_experts(entry, slot, ids, model.family, widths)
        if target is None or resized is None:
            return target
        return replace(target, shape=resized.shape, spans=resized.pieces)

    def targets(entry: TensorEntry) -> Iterator[PlannedTensor]:
        if tensor := _with_bytes(target, entry, repairs, in_bf16):
            yield tensor
            yield from _empty_experts(tensor, model.slots.get(entry.name), kept)
        if entry == tied:
            whole = (Span(entry.start, entry.end),)
            yield PlannedTensor(entry, OUTPUT_HEAD, entry.shape, whole, entry.dtype)

    planned = (_plan_shard(shard, targets) for shard in model.checkpoint.shards)
    return tuple(shard for shard in planned if shard.tensors)


def _dequantised(tensor: PlannedTensor, matrix: Fp8Matrix) -> PlannedTensor:
    """The same in BF16; experts that stay keep their matrices whole."""
    if tensor.is_cut:
        raise ExportError(
            f"{tensor.source.name} is in FP8 and loses some of its rows or columns; export without "
            "--dequantise."
        )
    rows, columns = matrix.entry.shape
    piece = Dequantise(matrix.entry.start, rows, matrix.scales(), matrix.block, columns)
    return replace(tensor, spans=(piece,), dtype=BF16)


def _with_bytes(
    target: Callable[[TensorEntry], PlannedTensor | None],
    entry: TensorEntry,
    repairs: Mapping[str, RepairedTensor],
    in_bf16: Dequantisation,
) -> PlannedTensor | None:
    """The target of a tensor, with the bytes of its repair, or in BF16, if it has either."""
    new = repairs.get(entry.name)
    planned = target(new.entry if new else entry)
    if planned and new:
        return replace(planned, source=entry, repaired=new.file)
    matrix = in_bf16.matrices.get(entry.name)
    return _dequantised(planned, matrix) if planned and matrix else planned


def _plan_shard(
    shard: Shard, targets: Callable[[TensorEntry], Iterable[PlannedTensor]]
) -> PlannedShard:
    tensors: list[PlannedTensor] = []
    cut = dropped = 0
    for entry in shard.tensors:
        planned = tuple(targets(entry))
        dropped += not planned
        tensors += planned
        cut += sum(tensor.is_cut for tensor in planned)
    # A shard without cuts still changes if experts are repaired or get other ids, or by a head.
    changed = any(
        tensor.repaired or tensor.is_dequantised or tensor.name != tensor.source.name
        for tensor in tensors
    )
    if not (cut or dropped or changed):
        reading = ShardReading(shard.name, (Span(0, shard.size),))
        return PlannedShard(shard.name, b"", (reading,), tuple(tensors), 0, 0)
    return replace(assemble(shard.name, tensors, shard.metadata), dropped=dropped)


def assemble(
    name: str, tensors: Sequence[PlannedTensor], metadata: Mapping[str, str]
) -> PlannedShard:
    """A shard with these tensors, of one or several source shards; `metadata` is its header's."""
    # Largest elements first, as safetensors does, so that a cut tensor of narrow elements does not
    # misalign a wider one after it. Sorting is stable, so mostly nothing moves.
    order = sorted(tensors, key=lambda tensor: -tensor.item_bytes)
    readings = tuple(
        ShardReading(source, _join(span for tensor in run for span in tensor.spans), folder)
        for (folder, source), run in groupby(order, key=lambda tensor: tensor.place)
    )
    raw: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    position = 0
    for tensor in order:
        raw[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [position, position + tensor.nbytes],
        }
        position += tensor.nbytes
    header = json.dumps(raw, separators=(",", ":"), ensure_ascii=False).encode()
    header += b" " * (-len(header) % 8)  # safetensors aligns the first tensor to 8 bytes
    prefix, cut = struct.pack("<Q", len(header)) + header, sum(tensor.is_cut for tensor in order)
    return PlannedShard(name, prefix, readings, tuple(order), cut, dropped=0)


# Dtype, shape and offsets of a tensor in a header, without its name.
_ENTRY_BYTES = 160
_FIXED_BYTES = 256  # length, metadata and padding of a header


def reshard(model: MoEModel, shards: Sequence[PlannedShard], most: int) -> tuple[PlannedShard, ...]:
    """The same tensors in the same order, in as few files of at most `most` bytes.

    A file with a single tensor may be larger.
    """
    tensors = [tensor for shard in shards for tensor in shard.tensors]
    metadata = next((shard.metadata for shard in model.checkpoint.shards if shard.metadata), {})
    groups: list[list[PlannedTensor]] = [[]]
    size = _FIXED_BYTES
    for tensor in tensors:
        # Letters of a name may take several bytes or be escaped.
        takes = tensor.nbytes + len(json.dumps(tensor.name)) + _ENTRY_BYTES
        if groups[-1] and size + takes > most:
            groups.append([])
            size = _FIXED_BYTES
        groups[-1].append(tensor)
        size += takes
    if len(groups) == 1:
        return (assemble("model.safetensors", groups[0], metadata),)
    return tuple(
        assemble(f"model-{number:05d}-of-{len(groups):05d}.safetensors", group, metadata)
        for number, group in enumerate(groups, 1)
    )


def pruned_index(model: MoEModel, shards: Sequence[PlannedShard]) -> bytes | None:
    """The shard index of the pruned checkpoint; None if the source has none."""
    index = read_index(model.checkpoint.path)
    if index is None:
        return None
    # What is read of files that the source does not list is listed from here on.
    read_files = {file.name for file in other_files(model) if file.is_read}
    entries = model.checkpoint.tensors.items()
    added = [name for name, entry in entries if entry.shard in read_files]
    listed = {**index.weight_map, **dict.fromkeys(added, "")}
    if unlisted := [name for name, _ in entries if name not in listed]:
        shard = model.checkpoint.tensors[unlisted[0]].shard
        raise ExportError(
            f"{shard} holds {unlisted[0]}, which {INDEX_NAME} does not list ({len(unlisted)} such "
            "tensors), so readers differ on whether it belongs to the model; fetch the index "
            "again, or give --max-shard-size, which writes and lists all tensors."
        )
    tensors = [(shard.name, tensor) for shard in shards for tensor in shard.tensors]
    if (
        not added
        and len(tensors) == len(model.checkpoint.tensors)
        and not any(
            tensor.name != tensor.source.name
            or (tensor.shape, tensor.dtype) != (tensor.source.shape, tensor.source.dtype)
            for _, tensor in tensors
        )
    ):
        return (model.checkpoint.path / INDEX_NAME).read_bytes()
    placed: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for shard, tensor in tensors:
        placed[tensor.source.name][tensor.name] = shard
    total = sum(tensor.nbytes for _, tensor in tensors)
    metadata = {**index.metadata, "total_size": total}
    if "total_parameters" in metadata:
        metadata["total_parameters"] = sum(math.prod(tensor.shape) for _, tensor in tensors)
    weight_map = {name: at for source in listed for name, at in placed[source].items()}
    return json_file({**index.raw, "metadata": metadata, "weight_map": weight_map})


def new_index(shards: Sequence[PlannedShard]) -> bytes | None:
    """The index of a new layout; None for a single shard, which needs none."""
    if len(shards) == 1:
        return None
    placed = {tensor.name: shard.name for shard in shards for tensor in shard.tensors}
    total = sum(tensor.nbytes for shard in shards for tensor in shard.tensors)
    return json_file({"metadata": {"total_size": total}, "weight_map": placed})
