"""What sets a checkpoint apart within its family, as far as serving engines are known to care.

One function for both sides: the rows of `engine_results` are recorded with these traits, and a
checkpoint is matched to rows by them. Read from the configuration and the tensors' names.
"""

import re
from collections.abc import Collection, Iterator
from functools import lru_cache
from typing import Any, Final

from analysis.families.base import SlotKind
from analysis.model.heads import prediction_heads
from analysis.model.moe_model import MoEModel

Traits = tuple[str, ...]  # sorted

TIED: Final = "tied embeddings"
HEADS: Final = "prediction heads"
MLA: Final = "multi-head latent attention"
_HEAD_TENSOR: Final = re.compile(r"(\w+\.)*(lm_)?head\.weight")
# Trait -> a tensor that only such checkpoints have.
_TENSORS: Final = {
    "shared experts": re.compile(r".+shared_(experts?|mlp)\b.+"),
    # Those of towers for images and sound are no concern of engines' language models.
    "attention biases": re.compile(
        r"(?!.*(vis|audio)).+attn\.(\w+\.)*\w*(proj|qkv|query_key_value|dense)\.bias"
    ),
    "head bias": re.compile(r"(\w+\.)*lm_head\.bias"),
    "query and key norms": re.compile(
        r"(?!.*(vis|audio)).+attn\.(q|k|query|key)_(layer)?norm\.weight"
    ),
}
# Trait -> a key of the configuration that is set in such checkpoints.
_KEYS: Final = {
    MLA: "kv_lora_rank",
    "low-rank queries": "q_lora_rank",
    "normalised gates": "norm_topk_prob",
    "latent experts": "moe_latent_size",
    "clipped attention": "clip_qkv",
    "MLP biases": "mlp_bias",
}
# Trait -> keys of factors, one of which is not 1 in such checkpoints.
_FACTORS: Final = {
    "scaled gates": (
        "routed_scaling_factor",
        "moe_routed_scaling_factor",
        "router_scaling_factor",
        "route_scale",
    ),
    "multipliers": (
        "embedding_multiplier",
        "residual_multiplier",
        "attention_multiplier",
        "logits_scaling",
        "logit_scale",
    ),
}
# A method of quantisation is a trait as well, by transformers' name of it.
_QUANTISED: Final = "{} weights"
_ACTIVATIONS: Final = ("hidden_act", "hidden_activation", "mlp_hidden_act")


# Asked again at every change of a plan, as `_traits` is.
@lru_cache(maxsize=16)
def traits_of(model: MoEModel, *, is_pruned: bool = False, keeps_heads: bool = False) -> Traits:
    """The traits of a checkpoint, or of its export.

    An export stores a head that engines need untied, and drops prediction heads unless
    `keeps_heads`.
    """
    traits = set(_traits(model))
    if is_pruned and model.tied_embedding is not None:
        traits.discard(TIED)
    if is_pruned and not keeps_heads:
        traits.discard(HEADS)
    return tuple(sorted(traits))


def dequantised_traits(traits: Traits, method: str) -> Traits:
    """The traits of the same checkpoint with all weights in bfloat16."""
    return tuple(trait for trait in traits if trait != _QUANTISED.format(method))


@lru_cache(maxsize=8)
def _traits(model: MoEModel) -> frozenset[str]:
    names, config = model.checkpoint.tensors, model.config
    slots = list(model.slots.values())
    sparse = [layer.index for layer in model.layers]
    kinds = config.get("layer_types")
    uses_window = config.get("sliding_window") and config.get("use_sliding_window", not kinds)
    is_so = {
        "dense layers first": sparse[0] > 0,
        "dense layers between": len(sparse) <= sparse[-1] - sparse[0],
        "dense layers last": sparse[-1] < model.depth - 1,
        "router groups": any(layer.num_groups > 1 for layer in model.layers),
        "router biases": any(
            slot.kind is SlotKind.ROUTER and "bias" in slot.role for slot in slots
        ),
        "expert biases": any(
            slot.kind is not SlotKind.ROUTER and slot.role == "bias" for slot in slots
        ),
        "sliding windows": (isinstance(kinds, list) and "sliding_attention" in kinds)
        or bool(uses_window),
        TIED: not any(map(_HEAD_TENSOR.fullmatch, names)),
        HEADS: bool(prediction_heads(model)),
        **{trait: any(map(tensor.fullmatch, names)) for trait, tensor in _TENSORS.items()},
        "soft caps": any("softcapping" in key and config[key] for key in config),
        **{trait: bool(config.get(key)) for trait, key in _KEYS.items()},
        **{
            trait: any(config.get(key) not in (None, 1) for key in keys)
            for trait, keys in _FACTORS.items()
        },
    }
    scaled = {f"{kind} positions" for kind in _rope_types(config)}
    activations = {str(config[key]) for key in _ACTIVATIONS if config.get(key)} - {"silu", "swish"}
    kind_traits = scaled | {f"{kind} activation" for kind in activations}
    if model.quantisation:
        kind_traits.add(_QUANTISED.format(model.quantisation))
    return frozenset(trait for trait, applies in is_so.items() if applies) | kind_traits


def _rope_types(config: Any) -> Iterator[str]:
    """How positions are scaled, where they are; layers of each type may have their own way."""
    for key in ("rope_scaling", "rope_parameters"):
        settings = config.get(key)
        if not isinstance(settings, dict):
            continue
        for section in (
            settings,
            *(inner for inner in settings.values() if isinstance(inner, dict)),
        ):
            kind = section.get("rope_type") or section.get("type")
            if isinstance(kind, str) and kind not in ("default", "mrope", "proportional"):
                yield kind


def differences(own: Collection[str], tried: Collection[str]) -> str:
    """How a checkpoint differs from the model that was tried, in words."""
    more, fewer = sorted({*own} - {*tried}), sorted({*tried} - {*own})
    parts = [
        f"{word} {', '.join(traits)}"
        for word, traits in (("it has", more), ("no", fewer))
        if traits
    ]
    return " and ".join(parts)
