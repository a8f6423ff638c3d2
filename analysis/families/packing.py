"""Families in which documents that share a sequence can be kept from seeing each other.

They hand the positions of tokens to transformers' causal masks, which take a restart of positions
for the start of another text. Layers that carry a state along the sequence (linear attention,
Mamba, convolutions) mix documents whatever the mask is.
"""

from collections.abc import Collection

from analysis.errors import UnsupportedModelError

_SEPARATE = frozenset(
    {
        "olmoe",
        "flex_olmo",
        "qwen2_moe",
        "qwen3_moe",
        "qwen3_next",
        "qwen3_5_moe_text",
        "mixtral",
        "minimax",
        "minimax_m2",
        "phimoe",
        "granitemoe",
        "granitemoeshared",
        "granitemoehybrid",
        "deepseek",
        "deepseek_v2",
        "deepseek_v3",
        "glm4_moe",
        "dots1",
        "kimi_k2",
        "ernie4_5_moe",
        "hunyuan_v1_moe",
        "jamba",
        "lfm2_moe",
        "nemotron_h",
        "aria_text",
        "hy_v3",
        "laguna",
        "glm4_moe_lite",
        "solar_open",
        "exaone_moe",
        "axk1",
        "mimo_v2_flash",
        "beam",
        "cohere2_moe",
        "mellum",
        "flint",
        "granitemoe_swa",
        "qwen3_vl_moe_text",
        "deepseek_v32",
        "glm_moe_dsa",
        "axk2",
        "hy_v4",
        "gemma4_text",
        "mistral4",
        "qwen3_omni_moe_text",
    }
)
_STATELESS = frozenset(
    {"full_attention", "sliding_attention", "indexed_attention", "moe", "mlp", "sparse", "dense"}
)
# Flash attention looks at positions only where a batch has one sequence.
_ATTENTION = ("eager", "sdpa")
_INSTEAD = "use --packing concatenate or pad."


def state_kinds(layer_types: Collection[str]) -> list[str]:
    """Which of these kinds of layers carry a state along the sequence, sorted."""
    return sorted(set(layer_types) - _STATELESS)


def check_packing(
    model_type: str, layer_types: Collection[str], attention: str | None = None
) -> None:
    """Refuse where packed documents would see each other, or are not known not to.

    Kinds of layers and attention are as transformers names them; without kinds all layers are
    alike, and None is its default attention.
    """
    if states := state_kinds(layer_types):
        raise UnsupportedModelError(
            f"Documents cannot be packed for {model_type}: its layers of kind {', '.join(states)} "
            f"carry a state from one document to the next; {_INSTEAD}"
        )
    if model_type not in _SEPARATE:
        raise UnsupportedModelError(
            f"Documents cannot be packed for {model_type}: its attention is not known to keep them "
            f"apart; {_INSTEAD}"
        )
    if attention is not None and attention not in _ATTENTION:
        raise UnsupportedModelError(
            f"Documents cannot be packed with the attention {attention}; choose one of "
            f"{', '.join(_ATTENTION)}, or {_INSTEAD}"
        )
