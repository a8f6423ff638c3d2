"""Configuration of a pruned checkpoint, edited as raw JSON.

Saving a configuration through transformers would rename its keys (rope_theta, torch_dtype,
num_experts), and readers of another version would then fall back to defaults without a word.
"""

import json
from collections.abc import Mapping
from typing import Any

from analysis.checkpoint import CONFIG_NAME
from analysis.families import MoEFamily
from analysis.families.base import PER_LAYER_KEY, WIDTHS_KEY
from analysis.model import MoEModel
from analysis.nonuniform.modeling_file import auto_map
from pruning.plan import PruningPlan

# Entries of auto_map that decide which class a model becomes.
MODEL_CLASSES = ("AutoConfig", "AutoModel")


def json_file(value: Mapping[str, Any]) -> bytes:
    """A JSON file of a checkpoint, laid out as transformers does."""
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


def _layer_counts(model: MoEModel, plan: PruningPlan) -> list[int] | None:
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
    family, counts = model.family, _layer_counts(model, plan)
    config = family.config_with_count(json.loads(raw), max(kept.values()))
    # Its balancing loss is meant for training the full set of experts, and for one count.
    changes: dict[str, Any] = {"output_router_logits": False}
    if counts or PER_LAYER_KEY in model.config:
        changes[PER_LAYER_KEY] = counts
    return json_file(family.edited(config, **changes))


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
    return json_file({**rest, "auto_map": classes} if classes else rest)
