"""Checkpoints whose weights are not here: names, dtypes and shapes of tensors, and what they tell.

They come from the headers of a hub model, or from a configuration alone. What transformers builds
from a configuration is the trunk in one dtype; how a published checkpoint differs from that (FP8 in
blocks, MXFP4, prediction heads) is added here as far as config.json says it.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from analysis.checkpoint.index import (
    CONFIG_NAME,
    ITEM_BYTES,
    Checkpoint,
    Config,
    Shard,
    TensorEntry,
)
from analysis.model.moe_model import MoEModel

# Name of a tensor -> dtype as safetensors names it, and shape.
Shapes = Mapping[str, tuple[str, tuple[int, ...]]]
_PLACE = "no-such-file.safetensors"


@dataclass(frozen=True, eq=False)
class Outline(Checkpoint):
    """Headers of a checkpoint whose weights are not here."""

    basis: str  # where they come from, in words
    caveats: tuple[str, ...] = ()  # what sizes do not count right, a sentence each

    @cached_property
    def identity(self) -> str:
        """Of configuration and basis alone; never equal to that of a checkpoint with weights."""
        config = {key: value for key, value in self.config.items() if key != "transformers_version"}
        text = json.dumps([self.basis, config], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


def without_weights(model: MoEModel) -> Outline | None:
    """The outline behind a model; None if its weights are here."""
    return model.checkpoint if isinstance(model.checkpoint, Outline) else None


def outline_of(
    path: Path, config: Config, tensors: Shapes, caveats: tuple[str, ...] = ()
) -> Outline:
    """The headers that one file with these tensors would have, for a configuration."""
    entries, end = [], 0
    for name, (dtype, shape) in tensors.items():
        start, end = end, end + math.prod(shape) * ITEM_BYTES[dtype]
        entries.append(TensorEntry(name, _PLACE, dtype, shape, start, end))
    shard = Shard(_PLACE, end, b"", 0, {}, tuple(entries))
    return Outline(path, config, (shard,), CONFIG_NAME, caveats)
