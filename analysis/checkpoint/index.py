"""What a checkpoint holds: shards, tensor names, shapes, dtypes, byte ranges. No torch."""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

Config = Mapping[str, Any]

CONFIG_NAME = "config.json"
INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"
LONGEST_NAME = 255  # of a file on every system, in bytes
_SAMPLES, _SAMPLE_BYTES = 16, 4096  # 64 KiB a shard
# Bytes of an element, for dtypes of whole bytes.
ITEM_BYTES = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 8),
    **dict.fromkeys(("F32", "I32", "U32"), 4),
    **dict.fromkeys(("BF16", "F16", "I16", "U16"), 2),
    **dict.fromkeys(("F8_E4M3", "F8_E5M2", "F8_E8M0", "I8", "U8", "BOOL"), 1),
}


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


def is_copy(file: str) -> bool:
    """Whether a file has the same weights in the publisher's own layout, as Mistral's models do."""
    return file.startswith("consolidated")
