"""Configuration of a pruned checkpoint, edited as raw JSON.

Saving a configuration through transformers would rename keys (rope_theta, torch_dtype,
num_experts), and readers of another version would silently fall back to defaults.
"""

import json
from collections.abc import Mapping
from typing import Any

from analysis.checkpoint.index import CONFIG_NAME
from analysis.families.base import HEAD_KEYS, PER_LAYER_ALIAS, PER_LAYER_KEY, WIDTHS_KEY, MoEFamily
from analysis.model.heads import prediction_heads
from analysis.model.moe_model import QUANTISED, MoEModel
from analysis.nonuniform.modeling_file import auto_map
from pruning.plan.experts_per_token import written_top_k
from pruning.plan.heads import HeadChoice, HeadPlan
from pruning.plan.plan import PruningPlan, untied_embedding
from pruning.plan.widths import WidthPlan, widths_config

# Entries of auto_map that choose the model class.
MODEL_CLASSES = ("AutoConfig", "AutoModel")
Config = dict[str, Any]


def json_file(value: Mapping[str, Any]) -> bytes:
    """A JSON file of a checkpoint, laid out as transformers does."""
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


def pruned_config(
    model: MoEModel,
    plan: PruningPlan,
    heads: HeadPlan,
    widths: WidthPlan | None,
    *,
    padded: bool = False,
) -> bytes:
    """`config.json` of an export; the source's bytes if nothing changes.

    The plan is complete, see `fit_plan`; `widths` are for plans that remove neurons; `padded`:
    every layer is filled up to the largest.
    """
    raw = (model.checkpoint.path / CONFIG_NAME).read_bytes()
    source: Config = json.loads(raw)
    family, config = model.family, source
    kept = {layer: len(ids) for layer, ids in plan.kept.items()}
    if padded:
        kept = dict.fromkeys(kept, max(kept.values()))
    if kept != {layer.index: layer.num_experts for layer in model.layers}:
        # The balancing loss is meant for the full set of experts, and for one count.
        counts: Config = {"output_router_logits": False}
        is_uniform = len(set(kept.values())) == 1
        # Dense layers have 0.
        layer_counts = [kept.get(layer, 0) for layer in range(model.depth)]
        for key in (PER_LAYER_KEY, PER_LAYER_ALIAS):
            if not is_uniform or key in model.config:
                counts[key] = None if is_uniform else layer_counts
        config = family.edited(family.config_with_count(config, max(kept.values())), **counts)
    if plan.top_k:
        # The balancing loss counts with the experts per token.
        config = family.edited(
            family.config_with_top_k(config, written_top_k(plan.top_k, family, model.depth)),
            output_router_logits=False,
        )
    if changes := widths_config(widths, model) if widths else {}:
        # The balancing loss is meant for training the full set of experts.
        config = family.edited(config, **changes, output_router_logits=False)
    # A source may count heads that it does not hold, as checkpoints that transformers pruned or
    # saved; llama.cpp then looks for their layers.
    only_counted = config is not source and not prediction_heads(model)
    if heads.choice is HeadChoice.DROP or only_counted:
        inner: Any = config
        for key in family.config_path:
            inner = inner[key]
        config = {**config, **{key: 0 for key in HEAD_KEYS if config.get(key)}}
        config = family.edited(config, **{key: 0 for key in HEAD_KEYS if inner.get(key)})
    if untied_embedding(model, plan):
        config = family.edited(config, tie_word_embeddings=False)
    config = with_model_classes(config, family)
    return raw if config == source else json_file(config)


def in_bfloat16(raw: bytes, family: MoEFamily) -> bytes:
    """A `config.json` without its quantisation, wherever it states that, and with the dtype."""
    parts: list[Config] = [json.loads(raw)]
    for key in family.config_path:
        parts.append(parts[-1][key])
    for part in parts:
        part.pop(QUANTISED, None)
        for key in ("dtype", "torch_dtype"):
            if key in part:
                part[key] = "bfloat16"
    if not any({"dtype", "torch_dtype"} & part.keys() for part in parts):
        parts[0]["torch_dtype"] = "bfloat16"
    return json_file(parts[0])


def own_sizes(config: Mapping[str, Any], family: MoEFamily) -> frozenset[str]:
    """The keys by which a configuration sizes layers individually: counts, widths, both."""
    part = family.text_config(config)
    return frozenset(key for key in (PER_LAYER_KEY, WIDTHS_KEY) if part.get(key) is not None)


def with_model_classes(config: Config, family: MoEFamily) -> Config:
    """The configuration, naming the classes of `modeling_pruned.py` if they are needed."""
    ours, has_own = auto_map(family), bool(own_sizes(config, family))
    before = config.get("auto_map") or {}
    classes = {
        name: where
        for name, where in before.items()
        # The source's own code builds all layers alike.
        if where != ours.get(name) and not (has_own and name.startswith(MODEL_CLASSES))
    }
    if has_own:
        classes |= ours
    if classes == before:
        return config
    rest = {key: value for key, value in config.items() if key != "auto_map"}
    return {**rest, "auto_map": classes} if classes else rest
