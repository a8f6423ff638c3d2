"""Index of a local checkpoint: shards, tensor names, shapes, dtypes, byte ranges. No torch."""

import hashlib
import json
import math
import re
import struct
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from analysis.checkpoint.folder_kinds import WEIGHT_SUFFIXES, other_kind
from analysis.checkpoint.weight_files import INDEX_NAME, SINGLE_NAME, read_weight_map
from analysis.errors import CheckpointError
from analysis.files.content import read_whole
from analysis.files.json_text import parse_json, parse_json_once

Config = Mapping[str, Any]

CONFIG_NAME = "config.json"
_MAX_HEADER = 100_000_000  # the format's own limit, in bytes
_SAMPLES, _SAMPLE_BYTES = 16, 4096  # 64 KiB a shard
# Bytes of an element, for dtypes of whole bytes.
ITEM_BYTES = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 8),
    **dict.fromkeys(("F32", "I32", "U32"), 4),
    **dict.fromkeys(("BF16", "F16", "I16", "U16"), 2),
    **dict.fromkeys(("F8_E4M3", "F8_E5M2", "F8_E8M0", "I8", "U8", "BOOL"), 1),
}
_IMPLEMENTATION = re.compile(r"_?(attn|experts)_implementation(_internal)?")
# Implementations in Python or torch; transformers fetches others from the hub (deepgemm, sonicmoe;
# flash_attention_2 if its package is missing).
_PLAIN = frozenset(("eager", "paged|eager", "sdpa", "flex_attention", "batched_mm", "grouped_mm"))


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """Where one tensor is stored."""

    name: str  # in the checkpoint
    shard: str  # file name of its shard
    dtype: str  # safetensors name of the dtype, such as "BF16"
    shape: tuple[int, ...]
    start: int  # first byte, from the start of the file
    end: int  # one past the last byte

    @property
    def nbytes(self) -> int:
        """Bytes on disk."""
        return self.end - self.start

    @property
    def numel(self) -> int:
        """Elements; 1 for a scalar."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Shard:
    """One safetensors file."""

    name: str  # of the file
    size: int  # bytes
    header: bytes  # raw JSON
    data_start: int  # first byte after the header
    metadata: Mapping[str, str]  # the header's `__metadata__`
    tensors: tuple[TensorEntry, ...]  # in the order of their bytes


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A checkpoint directory with its headers read and checked."""

    path: Path
    config: Config
    shards: tuple[Shard, ...]
    # Other safetensors files of the folder, which neither index nor name makes part of the model.
    others: tuple[Shard, ...] = field(default=(), kw_only=True)

    @cached_property
    def tensors(self) -> Mapping[str, TensorEntry]:
        """All tensors by name."""
        return {entry.name: entry for shard in self.shards for entry in shard.tensors}

    @cached_property
    def identity(self) -> str:
        """SHA-256 that identifies the model without reading all weights, as 64 hex digits.

        Covers the configuration (without transformers_version), every header, and 64 KiB sampled at
        fixed offsets of each shard.
        """
        config = {key: value for key, value in self.config.items() if key != "transformers_version"}
        sha = hashlib.sha256(json.dumps(config, sort_keys=True).encode())
        for shard in self.shards:
            sha.update(hashlib.sha256(shard.header).digest())
            span = shard.size - shard.data_start
            with (self.path / shard.name).open("rb") as file:
                for index in range(_SAMPLES):
                    offset = min(index * max(1, span // _SAMPLES), max(0, span - _SAMPLE_BYTES))
                    file.seek(shard.data_start + offset)
                    sha.update(file.read(_SAMPLE_BYTES))
        return sha.hexdigest()

    @property
    def num_params(self) -> int:
        """Elements of all tensors on disk; tied weights count once."""
        return sum(entry.numel for entry in self.tensors.values())

    @cached_property
    def nbytes(self) -> int:
        """Bytes of all tensors on disk."""
        return sum(entry.nbytes for entry in self.tensors.values())


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
    if not isinstance(dtype, str) or any(type(each) is not int or each < 0 for each in numbers):
        raise ValueError(f"{name} has a dtype, a shape or offsets of a wrong kind")
    return TensorEntry(name, shard, dtype, tuple(shape), data_start + start, data_start + end)


def _config_file(path: Path) -> Path:
    """The config.json of a checkpoint's folder; refuses what is no such folder, by what it is."""
    if path.is_file():
        folder, remedy = path.absolute().parent, f"the folder of a checkpoint, with a {CONFIG_NAME}"
        if (folder / CONFIG_NAME).is_file():
            remedy = f"the checkpoint's folder, {folder}"
        elif path.suffix.lower() in WEIGHT_SUFFIXES and (kind := other_kind(folder)):
            raise CheckpointError(f"{path} is a file; {folder} {kind}")
        raise CheckpointError(f"{path} is a file; give {remedy}.")
    if not path.is_dir():
        raise CheckpointError(f"{path} is not a directory; give the folder of a checkpoint.")
    file = path / CONFIG_NAME
    if not file.is_file():
        what = other_kind(path) or f"has no {CONFIG_NAME}; is it the folder of a checkpoint?"
        raise CheckpointError(f"{path} {what}")
    return file


def read_config(path: Path) -> dict[str, Any]:
    """`config.json` of a checkpoint directory as raw JSON."""
    file = _config_file(path)
    try:
        config = parse_json(read_whole(file))
    except ValueError as error:
        raise CheckpointError(f"{file} is not valid JSON: {error}.") from error
    if not isinstance(config, dict):
        raise CheckpointError(f"{file} does not hold a JSON object.")
    # These keys make transformers run native code or read another configuration, whatever
    # trust_remote_code says. Kernels that it names itself are fetched only with package `kernels`.
    if "configuration_files" in config:
        raise CheckpointError(
            f"{file}: configuration_files names other files, of which transformers would read one "
            f"instead; remove the line, or rename the right file to {CONFIG_NAME}."
        )
    for key, text in _texts(config):
        is_fetched = "/" in text or (text not in _PLAIN and find_spec("kernels"))
        if _IMPLEMENTATION.fullmatch(key) and is_fetched:
            raise CheckpointError(
                f"{file}: {key} names {text!r}, native code that would be fetched from the hub and "
                "run; remove the line, and choose an implementation with --attention."
            )
    return config


def _texts(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Every string of a configuration, with the key that it belongs to."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item, key)
    elif isinstance(value, dict):
        for name, item in value.items():
            # There may be one implementation per part of a model: {"text_config": "sdpa"}.
            yield from _texts(item, key if _IMPLEMENTATION.fullmatch(key) else name)


def open_checkpoint(path: Path) -> Checkpoint:
    """Read the configuration and all headers, but no weights."""
    config = read_config(path)
    weight_map = read_weight_map(path, config)
    names = sorted(set(weight_map.values())) or [SINGLE_NAME]
    shards = tuple(read_shard(path / name) for name in names)
    shard_of: dict[str, str] = {}
    for shard in shards:
        for entry in shard.tensors:
            if first := shard_of.get(entry.name):
                raise CheckpointError(
                    f"{first} and {shard.name} both hold {entry.name}; fetch the checkpoint again."
                )
            shard_of[entry.name] = shard.name
    missing = sorted(name for name, shard in weight_map.items() if shard_of.get(name) != shard)
    if missing:
        raise CheckpointError(
            f"{INDEX_NAME} places {missing[0]} in {weight_map[missing[0]]}, which does not hold "
            f"it ({len(missing)} such tensors); fetch the checkpoint again."
        )
    return Checkpoint(path.resolve(), config, shards, others=_other_shards(path, names))


def _other_shards(path: Path, names: Collection[str]) -> tuple[Shard, ...]:
    """The safetensors files of a folder besides these; one that is unreadable has no tensors."""
    others = []
    for file in sorted(path.glob("*.safetensors")):
        if file.name not in names and file.is_file():
            try:
                others.append(read_shard(file))
            except CheckpointError:
                others.append(Shard(file.name, file.stat().st_size, b"", 0, {}, ()))
    return tuple(others)
