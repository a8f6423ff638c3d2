"""Shard index of a pruned checkpoint: that of its source with what changed, or a new one."""

import json
import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from analysis.checkpoint import INDEX_NAME
from analysis.errors import ExportError
from analysis.model import MoEModel
from pruning.surgery.config import json_file
from pruning.surgery.shards import PlannedShard


def pruned_index(model: MoEModel, shards: Sequence[PlannedShard]) -> bytes | None:
    """The shard index of the pruned checkpoint; None where the source has none."""
    index = read_index(model.checkpoint.path)
    if index is None:
        return None
    if unlisted := [name for name in model.checkpoint.tensors if name not in index["weight_map"]]:
        shard = model.checkpoint.tensors[unlisted[0]].shard
        raise ExportError(
            f"{shard} holds {unlisted[0]}, which {INDEX_NAME} does not list ({len(unlisted)} such "
            "tensors), so readers differ on whether it belongs to the model; fetch the index "
            "again, or give --max-shard-size, with which all are written and listed anew."
        )
    tensors = [(shard.name, tensor) for shard in shards for tensor in shard.tensors]
    if len(tensors) == len(model.checkpoint.tensors) and not any(
        tensor.name != tensor.source.name or tensor.shape != tensor.source.shape
        for _, tensor in tensors
    ):
        return (model.checkpoint.path / INDEX_NAME).read_bytes()
    placed: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for shard, tensor in tensors:
        placed[tensor.source.name][tensor.name] = shard
    total = sum(tensor.nbytes for _, tensor in tensors)
    metadata = {**index.get("metadata", {}), "total_size": total}
    if "total_parameters" in metadata:
        metadata["total_parameters"] = sum(math.prod(tensor.shape) for _, tensor in tensors)
    weight_map = {name: at for source in index["weight_map"] for name, at in placed[source].items()}
    return json_file({**index, "metadata": metadata, "weight_map": weight_map})


def read_index(path: Path) -> dict[str, Any] | None:
    """The shard index of a checkpoint directory whose index is known to be readable."""
    file = path / INDEX_NAME
    index: dict[str, Any] | None = json.loads(file.read_bytes()) if file.is_file() else None
    return index


def new_index(shards: Sequence[PlannedShard]) -> bytes | None:
    """The index of shards of a new layout; None for a single one, which needs none."""
    if len(shards) == 1:
        return None
    placed = {tensor.name: shard.name for shard in shards for tensor in shard.tensors}
    total = sum(tensor.nbytes for shard in shards for tensor in shard.tensors)
    return json_file({"metadata": {"total_size": total}, "weight_map": placed})
