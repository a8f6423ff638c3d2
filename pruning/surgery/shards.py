"""What each pruned shard consists of: a new header and byte ranges of the source. Nothing is read.

Pruning never computes with weights, so it only moves bytes, of whatever element type.
"""

import json
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from analysis.checkpoint import Shard, TensorEntry
from analysis.errors import ExportError
from analysis.families import Slot, SlotKind
from analysis.model import MoEModel
from pruning.plan import PruningPlan


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes start..end-1 of a source file."""

    start: int
    end: int

    @property
    def nbytes(self) -> int:
        """Length in bytes."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class PlannedTensor:
    """A tensor of the pruned checkpoint.

    Args:
        source: the entry that it comes from.
        name: its name in the pruned checkpoint.
        shape: its shape there.
        spans: its bytes in the source shard, in order.
    """

    source: TensorEntry
    name: str
    shape: tuple[int, ...]
    spans: tuple[Span, ...]

    @property
    def nbytes(self) -> int:
        """Bytes in the pruned checkpoint."""
        return sum(span.nbytes for span in self.spans)


@dataclass(frozen=True, slots=True)
class PlannedShard:
    """A shard of the pruned checkpoint, before a byte of it is written.

    Args:
        name: file name, that of its source.
        prefix: bytes before the first span: length and header; empty for a shard copied whole.
        spans: byte ranges of the source shard that follow.
        tensors: its tensors, in the order of their bytes.
        cut: tensors from which experts were cut out.
        dropped: source tensors that are gone.
    """

    name: str
    prefix: bytes
    spans: tuple[Span, ...]
    tensors: tuple[PlannedTensor, ...]
    cut: int
    dropped: int

    @property
    def copied(self) -> int:
        """Tensors whose bytes are those of the source, renumbered or not."""
        return len(self.tensors) - self.cut

    @property
    def nbytes(self) -> int:
        """Size of the file."""
        return len(self.prefix) + sum(span.nbytes for span in self.spans)


def check_located(model: MoEModel) -> None:
    """Refuse a checkpoint with tensors of experts or routers that nobody knows how to cut.

    Raises:
        ExportError: such a tensor, in a layer of the trunk.
    """
    layers = {layer.index for layer in model.layers}
    depth = int(model.checkpoint.config["num_hidden_layers"])
    for name in model.checkpoint.tensors:
        index = model.family.routed_layer(name)
        # Layers beyond the trunk are prediction heads; they are copied as they are.
        if index is None or index >= depth:
            continue
        if index not in layers:
            raise ExportError(
                f"{name} belongs to experts, but config.json makes layer {index} dense; "
                "fix config.json or fetch the checkpoint again."
            )
        if model.family.locate(name) is None:
            raise ExportError(
                f"{name} belongs to the experts of layer {index}, but the family "
                f"{model.family.label} does not say how to prune it; nothing was written."
            )


def _rows(entry: TensorEntry, kept: Sequence[int]) -> tuple[Span, ...]:
    """The byte ranges of rows of axis 0; rows that follow each other share one."""
    size = entry.nbytes // entry.shape[0]
    if size * entry.shape[0] != entry.nbytes:
        raise ExportError(
            f"The rows of {entry.name} do not fall on whole bytes, so it cannot be cut."
        )
    return _joined(Span(entry.start + row * size, entry.start + (row + 1) * size) for row in kept)


def _joined(spans: Iterable[Span]) -> tuple[Span, ...]:
    """The same bytes in as few ranges as possible."""
    joined: list[Span] = []
    for span in spans:
        if joined and joined[-1].end == span.start:
            joined[-1] = Span(joined[-1].start, span.end)
        else:
            joined.append(span)
    return tuple(joined)


def plan_tensor(
    entry: TensorEntry, slot: Slot | None, kept: tuple[int, ...] | None
) -> PlannedTensor | None:
    """What becomes of one tensor; None when its expert is gone.

    Args:
        entry: the tensor in the source.
        slot: its place in the grid of experts; None when it has none.
        kept: experts that stay in its layer; None when the layer is no sparse layer of the trunk.
    """
    whole = (Span(entry.start, entry.end),)
    if slot is None or kept is None:
        return PlannedTensor(entry, entry.name, entry.shape, whole)
    if slot.kind is SlotKind.EXPERT:
        if slot.expert not in kept:
            return None
        name = slot.template.format(expert=kept.index(slot.expert))
        return PlannedTensor(entry, name, entry.shape, whole)
    shape = (len(kept), *entry.shape[1:])
    return PlannedTensor(entry, entry.name, shape, _rows(entry, kept))


def plan_shards(model: MoEModel, plan: PruningPlan) -> tuple[PlannedShard, ...]:
    """The shards that an export writes; a shard of which nothing is left is not among them.

    Args:
        model: the source.
        plan: complete, see `fit_plan`.

    Raises:
        ExportError: a tensor that cannot be cut.
    """
    check_located(model)
    planned = (_plan_shard(shard, model, plan) for shard in model.checkpoint.shards)
    return tuple(shard for shard in planned if shard.tensors or not shard.dropped)


def _plan_shard(shard: Shard, model: MoEModel, plan: PruningPlan) -> PlannedShard:
    tensors: list[PlannedTensor] = []
    cut = dropped = 0
    for entry in shard.tensors:
        slot = model.family.locate(entry.name)
        target = plan_tensor(entry, slot, plan.kept.get(slot.layer) if slot else None)
        if target is None:
            dropped += 1
        else:
            tensors.append(target)
            cut += target.shape != entry.shape
    # Nothing of this shard may be cut and yet its experts renumbered, because others are gone.
    renamed = any(tensor.name != tensor.source.name for tensor in tensors)
    if not (cut or dropped or renamed):
        return PlannedShard(shard.name, b"", (Span(0, shard.size),), tuple(tensors), 0, 0)
    # Largest elements first, as safetensors writes: a cut tensor of narrow elements must not
    # leave a wider one after it at an odd address. Sorting is stable, so most often nothing moves.
    tensors.sort(key=lambda tensor: -_item_bytes(tensor.source))
    spans = _joined(span for tensor in tensors for span in tensor.spans)
    prefix = _header(tensors, shard.metadata)
    return PlannedShard(shard.name, prefix, spans, tuple(tensors), cut, dropped)


def _item_bytes(entry: TensorEntry) -> int:
    return entry.nbytes // entry.numel if entry.numel else 0


def _header(tensors: Sequence[PlannedTensor], metadata: object) -> bytes:
    """Length and header of a safetensors file that holds these tensors one after the other."""
    raw: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    position = 0
    for tensor in tensors:
        raw[tensor.name] = {
            "dtype": tensor.source.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [position, position + tensor.nbytes],
        }
        position += tensor.nbytes
    header = json.dumps(raw, separators=(",", ":"), ensure_ascii=False).encode()
    header += b" " * (-len(header) % 8)  # safetensors aligns the first tensor to 8 bytes
    return struct.pack("<Q", len(header)) + header
