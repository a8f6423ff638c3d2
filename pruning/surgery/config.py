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
from analysis.families import MoEFamily
from analysis.families.base import PER_LAYER_KEY, WIDTHS_KEY
from analysis.model import MoEModel
from analysis.nonuniform.modeling_file import auto_map
from pruning.plan import PruningPlan
from pruning.surgery.shards import PlannedShard

# Entries of auto_map that decide which class a model becomes.
MODEL_CLASSES = ("AutoConfig", "AutoModel")


def _dump(value: Mapping[str, Any]) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


def per_layer_counts(model: MoEModel, plan: PruningPlan) -> list[int] | None:
    """Experts of each decoder layer after pruning, 0 in a dense one; None if all have as many.

    Args:
        model: the source.
        plan: complete, see `fit_plan`.
    """
    if len({len(ids) for ids in plan.kept.values()}) == 1:
        return None
    return [len(plan.kept.get(layer, ())) for layer in range(model.depth)]


def pruned_config(model: MoEModel, plan: PruningPlan) -> bytes:
    """`config.json` of the pruned checkpoint; the source's bytes when no count changes.

    Args:
        model: the source.
        plan: complete, see `fit_plan`.
    """
    raw = (model.checkpoint.path / CONFIG_NAME).read_bytes()
    kept = {layer: len(ids) for layer, ids in plan.kept.items()}
    if kept == {layer.index: layer.num_experts for layer in model.layers}:
        return raw
    family, counts = model.family, per_layer_counts(model, plan)
    config = family.config_with_count(json.loads(raw), max(kept.values()))
    # Its balancing loss is meant for training the full set of experts, and for one count.
    changes: dict[str, Any] = {"output_router_logits": False}
    if counts or PER_LAYER_KEY in model.config:
        changes[PER_LAYER_KEY] = counts
    return _dump(family.edited(config, **changes))


def own_sizes(content: bytes, family: MoEFamily) -> frozenset[str]:
    """The keys by which a `config.json` gives layers sizes of their own: numbers, widths, both."""
    text = family.text_config(json.loads(content))
    return frozenset(key for key in (PER_LAYER_KEY, WIDTHS_KEY) if text.get(key) is not None)


def with_model_classes(content: bytes, family: MoEFamily) -> bytes:
    """`config.json` that names the classes of `modeling_pruned.py`, or none where none are needed.

    Args:
        content: `config.json`, otherwise finished.
        family: the architecture.
    """
    config, ours = json.loads(content), auto_map(family)
    has_own = bool(own_sizes(content, family))
    before = config.get("auto_map") or {}
    classes = {
        name: where
        for name, where in before.items()
        # Code that came with the source builds every layer alike.
        if where != ours.get(name) and not (has_own and name.startswith(MODEL_CLASSES))
    }
    if has_own:
        classes |= ours
    if classes == before:
        return content
    rest = {key: value for key, value in config.items() if key != "auto_map"}
    return _dump({**rest, "auto_map": classes} if classes else rest)


def pruned_index(model: MoEModel, shards: Sequence[PlannedShard]) -> bytes | None:
    """The shard index of the pruned checkpoint; None where the source has none.

    Raises:
        ExportError: the source's index does not list every tensor of its shards.
    """
    index = read_index(model.checkpoint.path)
    if index is None:
        return None
    unlisted = [name for name in model.checkpoint.tensors if name not in index["weight_map"]]
    if unlisted:
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
