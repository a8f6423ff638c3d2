"""Reads headers of safetensors files and the index of shards, and checks them. No torch."""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.checkpoint.index import INDEX_NAME, ITEM_BYTES, Shard, TensorEntry
from analysis.errors import CheckpointError
from analysis.files.content import read_whole
from analysis.files.json_text import parse_json, parse_json_once

_MAX_HEADER = 100_000_000  # the format's own limit, in bytes


def read_shard(path: Path) -> Shard:
    """Read and check the header of a safetensors file."""
    if not path.is_file():
        raise CheckpointError(f"The shard {path.name} is missing from {path.parent}.")
    size = path.stat().st_size
    with path.open("rb") as file:
        prefix = file.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else _MAX_HEADER + 1
        if prefix == b"version ":
            raise CheckpointError(
                f"{path.name} is a Git LFS pointer instead of the weights; run `git lfs pull`."
            )
        if length > min(_MAX_HEADER, size):
            raise CheckpointError(f"{path.name} is not a safetensors file, or it is truncated.")
        header = file.read(length)
    try:
        raw: dict[str, Any] = parse_json_once(header)
        metadata = _header_metadata(raw.pop("__metadata__", {}))
        entries = [_tensor_entry(name, path.name, value, 8 + length) for name, value in raw.items()]
        entries.sort(key=lambda entry: (entry.start, entry.end))
        end = 8 + length
        for entry in entries:  # no overlaps, and sizes that fit the shapes
            item = ITEM_BYTES.get(entry.dtype)
            nbytes = entry.nbytes if item is None else entry.numel * item
            if entry.start < end or entry.nbytes != nbytes or entry.end < entry.start:
                raise CheckpointError(
                    f"The header of {path.name} is damaged: {entry.name} {list(entry.shape)} of "
                    f"{entry.dtype} cannot be in bytes {entry.start} to {entry.end}; fetch the "
                    "file again."
                )
            end = entry.end
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CheckpointError(f"The header of {path.name} cannot be read: {error}.") from error
    expected = max((entry.end for entry in entries), default=8 + length)
    if size < expected:
        raise CheckpointError(
            f"{path.name} is truncated: it has {size} bytes, its header promises {expected}; "
            "fetch the file again."
        )
    return Shard(path.name, size, header, 8 + length, metadata, tuple(entries))


def _header_metadata(raw: Any) -> dict[str, str]:
    """`__metadata__` of a header: texts by name; safetensors refuses others."""
    metadata = {} if raw is None else raw
    is_object = isinstance(metadata, dict)
    if not is_object or not all(isinstance(value, str) for value in metadata.values()):
        raise ValueError("its __metadata__ is no object of texts")
    return metadata


def _tensor_entry(name: str, shard: str, raw: Any, data_start: int) -> TensorEntry:
    """What a header says of a tensor, its offsets from the start of the file."""
    start, end = raw["data_offsets"]
    dtype, shape = raw["dtype"], raw["shape"]
    numbers = [start, end, *shape]
    if not isinstance(dtype, str) or any(
        type(number) is not int or number < 0 for number in numbers
    ):
        raise ValueError(f"{name} has a dtype, a shape or offsets of a wrong kind")
    return TensorEntry(name, shard, dtype, tuple(shape), data_start + start, data_start + end)


@dataclass(frozen=True, slots=True)
class ShardIndex:
    """The shard index of a checkpoint."""

    raw: Mapping[str, Any]  # all of it
    weight_map: Mapping[str, str]  # tensor -> file beside the index
    metadata: Mapping[str, Any]  # empty if there is none


def read_index(path: Path) -> ShardIndex | None:
    """The shard index of a checkpoint's folder; None without one.

    Raises:
        CheckpointError: it is no index, or it names files that are not beside it.
    """
    index = path / INDEX_NAME
    if not index.is_file():
        return None
    try:
        raw = parse_json(read_whole(index))
    except ValueError as error:
        raise CheckpointError(f"{index} is not a readable shard index: {error}.") from error
    weight_map = raw.get("weight_map") if isinstance(raw, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(
            f"{index} is not a readable shard index: it has no weight_map of tensors to files; "
            "fetch it again."
        )
    for tensor, name in weight_map.items():
        if not isinstance(name, str):
            raise CheckpointError(
                f"{index} is not a readable shard index: its weight_map gives {name!r} for "
                f"{tensor}, which is no file; fetch it again."
            )
    metadata = raw.get("metadata", {})
    if not isinstance(metadata, dict):
        raise CheckpointError(
            f"{index}: metadata is no object, which transformers needs; fetch the index again, or "
            'write "metadata": {}.'
        )
    return ShardIndex(raw, weight_map, metadata)
