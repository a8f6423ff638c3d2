"""Hashes of what checkpoints hold, comparable whatever their layouts and dtypes.

Each projection of an expert is hashed alone, as (out, in), and so is each expert's part of the
router; other tensors are hashed whole. Only hashes stay in memory.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from analysis.checkpoint.index import ITEM_BYTES, TensorEntry
from analysis.families.base import MoEFamily, Slot, SlotKind
from analysis.model.moe_model import LocatedTensor, MoEModel
from analysis.numbers.elements import FLOAT_BYTES, recast
from pruning.surgery.reading import CHUNK_BYTES, RangeFile, Reader, ask_shards

Bytes = NDArray[np.uint8]
Hash = bytes  # SHA-256
# What an expert consists of: a projection and a role; of a router: nothing and a role.
Part = tuple[str, str]
Parts = Mapping[Part, Hash]
Experts = Sequence[Parts]  # by id
# What is compared with whatever has the same key in another checkpoint: a part of the experts or
# of the router of a layer, or a tensor by its name with `LAYERS` for the prefix of layers.
Key = tuple[int, str, str] | str
LAYERS = "layers."
Dtypes = tuple[str, str]  # of the original and of the pruned checkpoint


@dataclass(frozen=True, slots=True)
class Hashes:
    """The hashes of a checkpoint."""

    experts: Mapping[int, Experts]  # by layer
    routers: Mapping[int, Experts]  # by layer
    others: Mapping[str, Hash]  # by name


class Pairing:
    """Which tensors of an original and of a pruned checkpoint can be compared."""

    def __init__(self, original: MoEModel, pruned: MoEModel) -> None:
        self.original, self.pruned = original, pruned
        self.dtypes = _dtypes(original), _dtypes(pruned)

    @cached_property
    def compared(self) -> dict[Key, Dtypes]:
        """The dtypes of what can be compared, if need be by a cast."""
        first, second = self.dtypes
        pairs = {key: (first[key], second[key]) for key in first.keys() & second.keys()}
        floats = FLOAT_BYTES.keys()
        return {key: pair for key, pair in pairs.items() if len({*pair}) == 1 or {*pair} <= floats}

    def is_cast(self, key: Key) -> bool:
        """Whether it is compared in the dtype that it has in the pruned checkpoint alone."""
        return len({*self.compared[key]}) > 1

    def entries(self, model: MoEModel) -> list[TensorEntry]:
        """The tensors of one of the two that are read."""
        entries = model.checkpoint.tensors.values()
        return [entry for entry in entries if keys_of(model, entry) & self.compared.keys()]

    def nbytes(self, model: MoEModel) -> int:
        """Bytes of one of the two that are read."""
        return sum(entry.nbytes for entry in self.entries(model))

    def hashes(self, model: MoEModel) -> Generator[int, None, Hashes]:
        """The hashes of one of the two; yields how many bytes are read."""
        by_shard: defaultdict[str, list[TensorEntry]] = defaultdict(list)
        for entry in self.entries(model):
            by_shard[entry.shard].append(entry)
        casts = self.compared if model is self.original else {}

        def ask(shard: str, reader: Reader) -> list[_Found]:
            with closing(RangeFile(model.checkpoint.path / shard)) as file:
                source = _Source(model, file, reader, casts)
                return [found for entry in by_shard[shard] for found in source.hashes(entry)]

        answers = yield from ask_shards(sorted(by_shard), ask)
        return _gathered(model, [found for answer in answers.values() for found in answer])


def keys_of(model: MoEModel, entry: TensorEntry) -> set[Key]:
    """The keys of what a tensor holds."""
    slot = model.slots.get(entry.name)
    if slot is None or not _is_split(model, slot):
        return {_plain_name(model, entry.name)}
    return {(slot.layer, *part) for part in _parts_of(slot)}


def _plain_name(model: MoEModel, name: str) -> str:
    """A tensor's name, with `layers` for the prefix that layers of this checkpoint have."""
    prefixes = (f"{trunk}." for trunk in model.family.trunks)
    prefix = next(filter(name.startswith, prefixes), "")
    return f"{LAYERS}{name[len(prefix) :]}" if prefix else name


def _dtypes(model: MoEModel) -> dict[Key, str]:
    entries = model.checkpoint.tensors.values()
    return {key: entry.dtype for entry in entries for key in keys_of(model, entry)}


def _is_split(model: MoEModel, slot: Slot) -> bool:
    """Whether a tensor is hashed by expert: it is of the trunk, and no table of token ids."""
    return slot.layer < model.depth and not slot.holds_ids


def _parts_of(slot: Slot) -> tuple[Part, ...]:
    """The parts that a tensor of experts or of a router holds."""
    if slot.projection == "gate_up" and slot.role in ("weight", "bias"):
        return ("gate", slot.role), ("up", slot.role)
    return ((slot.projection, slot.role),)


@dataclass(frozen=True, slots=True)
class _Found:
    """A hash, and what it is of."""

    key: Key
    sha: Hash
    expert: int = 0  # of a part of an expert or of a router
    is_router: bool = False


def _gathered(model: MoEModel, hashes: Sequence[_Found]) -> Hashes:
    experts, routers = _empty_grid(model), _empty_grid(model)
    others = {}
    for found in hashes:
        if isinstance(found.key, str):
            others[found.key] = found.sha
        else:
            layer, *part = found.key
            grid = routers if found.is_router else experts
            grid[layer][found.expert][part[0], part[1]] = found.sha
    return Hashes(experts, routers, others)


def _empty_grid(model: MoEModel) -> dict[int, list[dict[Part, Hash]]]:
    return {layer.index: [{} for _ in range(layer.num_experts)] for layer in model.layers}


@dataclass(frozen=True, slots=True)
class _Source:
    """A shard that is hashed."""

    model: MoEModel
    file: RangeFile
    reader: Reader
    casts: Mapping[Key, Dtypes]

    def hashes(self, entry: TensorEntry) -> Iterator[_Found]:
        """The hashes of what a tensor holds."""
        slot = self.model.slots.get(entry.name)
        if slot is None or not _is_split(self.model, slot):
            key = _plain_name(self.model, entry.name)
            yield _Found(key, self._span(key, entry.start, entry.end))
        elif slot.kind is SlotKind.ROUTER:
            yield from self._rows(entry, slot)
        else:
            yield from self._experts(LocatedTensor(entry, slot))

    def _span(self, key: Key, start: int, end: int) -> Hash:
        """The hash of a range of bytes, a chunk at a time."""
        sha = hashlib.sha256()
        for first in range(start, end, CHUNK_BYTES):
            sha.update(self._as_pruned(key, self._read(first, min(end, first + CHUNK_BYTES))).data)
        return sha.digest()

    def _read(self, start: int, end: int) -> Bytes:
        chunk = self.file.read(start, end - start)
        self.reader.count(end - start)
        return chunk

    def _as_pruned(self, key: Key, raw: Bytes) -> Bytes:
        """Bytes in the dtype of the pruned checkpoint."""
        flat = np.ascontiguousarray(raw).reshape(-1)
        dtype, target = self.casts.get(key, ("", ""))
        return flat if dtype == target else recast(flat, dtype, target)

    def _rows(self, entry: TensorEntry, slot: Slot) -> Iterator[_Found]:
        """The hashes of a router's tensor, by expert."""
        key = (slot.layer, "", slot.role)
        raw = self._read(entry.start, entry.end)
        items = raw.reshape(*entry.shape, entry.nbytes // max(1, entry.numel))
        for expert, row in enumerate(np.moveaxis(items, slot.axis, 0)):
            sha = hashlib.sha256(self._as_pruned(key, row).data).digest()
            yield _Found(key, sha, expert, is_router=True)

    def _experts(self, tensor: LocatedTensor) -> Iterator[_Found]:
        """The hashes of a tensor of one expert, or of all, by expert and part."""
        entry, slot, family = tensor.entry, tensor.slot, self.model.family
        is_stack = slot.kind is SlotKind.STACKED
        keys = [(slot.layer, *part) for part in _parts_of(slot)]
        count = entry.shape[0] if is_stack else 1
        step = entry.nbytes // count
        is_turned = is_stack and family.is_transposed and slot.role == "weight"
        is_mixed = len(keys) > 1 and family.is_interleaved
        for place in range(count):
            expert = place if slot.expert is None else slot.expert
            start = entry.start + place * step
            if is_turned or is_mixed:
                raw = self._read(start, start + step)
                for key, array in zip(keys, _projections(raw, family, tensor), strict=True):
                    sha = hashlib.sha256(self._as_pruned(key, array).data).digest()
                    yield _Found(key, sha, expert)
                continue
            size = step // len(keys)  # the rows of gate come first
            for number, key in enumerate(keys):
                first = start + number * size
                yield _Found(key, self._span(key, first, first + size), expert)


def _projections(raw: Bytes, family: MoEFamily, tensor: LocatedTensor) -> list[Bytes]:
    """An expert's slice of a transposed or interleaved stack as its projections, each (out, in)."""
    entry, slot = tensor.entry, tensor.slot
    array = raw.reshape(*entry.shape[1:], ITEM_BYTES[entry.dtype])
    if family.is_transposed and slot.role == "weight":
        array = array.swapaxes(0, 1)
    if len(_parts_of(slot)) == 1:
        return [array]
    return [array[0::2], array[1::2]] if family.is_interleaved else np.split(array, 2)
