"""Configuration and shard index of a pruned checkpoint, edited as raw JSON.

Saving a configuration through transformers would rename its keys (rope_theta, torch_dtype,
num_experts), and readers of another version would then fall back to defaults without a word.
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from analysis.checkpoint import CONFIG_NAME, INDEX_NAME
from analysis.errors import ExportError
from analysis.model import MoEModel
from pruning.plan import PruningPlan
from pruning.surgery.shards import PlannedShard


def _dump(value: Mapping[str, Any]) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


def kept_count(plan: PruningPlan) -> int:
    """The one number of experts that every sparse layer keeps.

    Raises:
        ExportError: layers keep different numbers.
    """
    counts = {len(ids) for ids in plan.kept.values()}
    if len(counts) != 1:
        raise ExportError(
            f"The plan keeps between {min(counts)} and {max(counts)} experts per layer, but a "
            "checkpoint that stock readers load has one count; use a uniform schedule."
        )
    return counts.pop()


def pruned_config(model: MoEModel, plan: PruningPlan) -> bytes:
    """`config.json` of the pruned checkpoint; the source's bytes when the count stays.

    Args:
        model: the source.
        plan: complete, see `fit_plan`.

    Raises:
        ExportError: layers keep different numbers of experts.
    """
    raw = (model.checkpoint.path / CONFIG_NAME).read_bytes()
    count = kept_count(plan)
    if all(layer.num_experts == count for layer in model.layers):
        return raw
    config = model.family.config_with_count(json.loads(raw), count)
    # Its balancing loss is meant for training the full set of experts.
    return _dump({**config, "output_router_logits": False})


def pruned_index(model: MoEModel, shards: Sequence[PlannedShard]) -> bytes | None:
    """The shard index of the pruned checkpoint; None where the source has none."""
    index = read_index(model.checkpoint.path)
    if index is None:
        return None
    tensors = [(shard.name, tensor) for shard in shards for tensor in shard.tensors]
    if len(tensors) == len(model.checkpoint.tensors) and not any(
        tensor.name != tensor.source.name or tensor.shape != tensor.source.shape
        for _, tensor in tensors
    ):
        return (model.checkpoint.path / INDEX_NAME).read_bytes()
    placed = {tensor.source.name: (tensor.name, shard) for shard, tensor in tensors}
    metadata = {**index.get("metadata", {})}
    metadata["total_size"] = sum(tensor.nbytes for _, tensor in tensors)
    if "total_parameters" in metadata:
        metadata["total_parameters"] = sum(math.prod(tensor.shape) for _, tensor in tensors)
    weight_map = dict(placed[name] for name in index["weight_map"] if name in placed)
    return _dump({**index, "metadata": metadata, "weight_map": weight_map})


def read_index(path: Path) -> dict[str, Any] | None:
    """The shard index of a checkpoint directory whose index is known to be readable."""
    file = path / INDEX_NAME
    index: dict[str, Any] | None = json.loads(file.read_bytes()) if file.is_file() else None
    return index
