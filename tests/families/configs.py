"""A tiny configuration of every family: thousands of parameters, awkward sizes, every oddity.

Counts are no powers of two, an expert's width differs from the model's, layers are of both kinds
where a family mixes them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from families.settings import (
    DEEPSEEK,
    DELTA,
    DSA,
    EYE,
    GEMMA4,
    GROUPS,
    HIDDEN,
    LIMIT,
    LINEAR_ATTENTION,
    LOCAL,
    MAMBA,
    MINIMAX_M3,
    MISTRAL4,
    MLA,
    NEMOTRON,
    OLMOE,
    ONE_GROUP,
    QWEN,
    QWEN3_5_TEXT,
    QWEN_SHARED,
    ROPE,
    SIGHT,
    THINKER,
    TWINS,
    V4_ATTENTION,
    V4_RATES,
    VISION,
    VOCAB,
    WIDTH,
    WINDOWS,
)

COMMON = {
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    **{"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1},
    **{"max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
}


@dataclass(frozen=True)
class Case:
    """One family, or one variant of it, and what is true of its tiny model."""

    name: str
    model_type: str
    # what the configuration says besides the common part
    settings: Mapping[str, Any] = field(hash=False)
    sparse: tuple[int, ...]  # decoder indices of the layers with experts
    experts: int  # routed experts of each
    top_k: int = 2  # experts per token
    groups: int = 1  # groups of the router; a plan keeps the same number in each
    fused_too: bool = True  # whether the checkpoint exists with stacked experts as well
    composite: bool = False  # whether the text model is a part of a larger one
    absent: tuple[str, ...] = ()  # tensors of the family that this variant does not have
    hashed: tuple[int, ...] = ()  # layers whose routers look experts up by token id
    like: str = ""  # the case of the same lineage that stands for it in the default run

    def __str__(self) -> str:
        return self.name

    @property
    def smallest(self) -> int:
        """The smallest number of experts that a plan may keep."""
        return max(self.top_k, 2 * self.groups if self.groups > 1 else 0)


def _case(
    name: str, sparse: tuple[int, ...], experts: int, settings: Mapping[str, Any], **more: Any
) -> Case:
    return Case(name, name.partition("-")[0], settings, sparse, experts, **more)


CASES = (
    _case("olmoe", (0, 1), 7, OLMOE),
    _case("olmoe-normalised", (0, 1), 7, {**OLMOE, "norm_topk_prob": True}),
    _case("flex_olmo", (0, 1), 7, OLMOE, top_k=3),
    _case(
        *("qwen2_moe", (0, 2), 6),
        {**QWEN_SHARED, "num_experts": 6, "num_hidden_layers": 3, "mlp_only_layers": [1]},
    ),
    _case(
        *("qwen3_moe", (1, 3), 6),
        {**QWEN, "num_experts": 6, "num_hidden_layers": 4, "decoder_sparse_step": 2}
        | {"head_dim": 8, "norm_topk_prob": True, "tie_word_embeddings": True},
    ),
    _case(
        *("qwen3_next", (1, 2), 6),
        {**LINEAR_ATTENTION, **QWEN_SHARED, "num_experts": 6, "mlp_only_layers": [0]},
    ),
    _case("qwen3_5_moe_text", (0, 1, 2), 7, QWEN3_5_TEXT),
    _case(
        *("qwen3_5_moe", (0, 1, 2), 7),
        {
            "text_config": {**COMMON, **QWEN3_5_TEXT},
            "vision_config": {"hidden_size": 8, "intermediate_size": 8, "depth": 1}
            | {"num_heads": 1, "out_hidden_size": HIDDEN, "patch_size": 2},
        },
        composite=True,
    ),
    _case("mixtral", (0, 1), 6, LOCAL),
    _case("minimax", (0, 1), 6, {**LOCAL, "head_dim": 8, "block_size": 8}),
    _case("minimax_m2", (0, 1), 6, {**LOCAL, "head_dim": 8}),
    _case("phimoe", (0, 1), 6, LOCAL),
    _case("granitemoe", (0, 1), 6, LOCAL, fused_too=False),
    _case(
        *("granitemoeshared", (0, 1), 6),
        {**LOCAL, "shared_intermediate_size": 40},
        fused_too=False,
    ),
    _case(
        *("granitemoehybrid", (0, 1), 6),
        {**MAMBA, **LOCAL, "shared_intermediate_size": 40, "mamba_n_heads": 4}
        | {"layer_types": ["linear_attention", "full_attention"]},
        fused_too=False,
    ),
    _case("deepseek", (1, 2), 7, DEEPSEEK),
    _case(
        *("deepseek-normalised", (2,), 7),
        {**DEEPSEEK, "norm_topk_prob": True, "moe_layer_freq": 2},
    ),
    _case("deepseek_v2", (1, 2), 7, {**DEEPSEEK, **MLA, **ONE_GROUP}),
    _case(
        *("deepseek_v2-groups", (1, 2), 12),
        {**GROUPS, "topk_method": "group_limited_greedy", "routed_scaling_factor": 1.5},
        top_k=3,
        groups=3,
    ),
    _case("deepseek_v3", (1, 2), 7, {**DEEPSEEK, **MLA, **ONE_GROUP}),
    _case("deepseek_v3-groups", (1, 2), 12, GROUPS, top_k=3, groups=3),
    _case("glm4_moe", (1, 2), 7, {**DEEPSEEK, "head_dim": 8, "routed_scaling_factor": 1.5}),
    _case("kimi_k2", (1, 2), 7, {**DEEPSEEK, **MLA, **ONE_GROUP}, like="deepseek_v3"),
    _case(
        *("kimi_k25", (1, 2), 7),
        {
            "text_config": {**COMMON, **DEEPSEEK, **MLA, **ONE_GROUP, "num_experts_per_tok": 2}
            | {"model_type": "kimi_k2"},
            "vision_config": {**VISION, "num_attention_heads": 1, "patch_size": 2}
            | {"pos_emb_height": 4, "pos_emb_width": 4, "pos_emb_time": 2},
            "projection_hidden_size": 8,
            "tie_word_embeddings": False,
        },
        composite=True,
    ),
    _case("dots1", (1, 2), 7, {**DEEPSEEK, "head_dim": 8, "norm_topk_prob": True}),
    _case(
        *("hy_v3", (1, 3), 7),
        {**QWEN, "num_experts": 7, "num_shared_experts": 2, "head_dim": 8, "num_hidden_layers": 4}
        | {"mlp_layer_types": ["dense", "sparse", "dense", "sparse"]},
    ),
    _case(
        *("laguna", (0, 2), 7),
        {**QWEN_SHARED, "num_experts": 7, "head_dim": 8, "num_hidden_layers": 3}
        | {"mlp_layer_types": ["sparse", "dense", "sparse"], "num_attention_heads": 4}
        | {"layer_types": ["full_attention", "sliding_attention", "full_attention"]}
        | {"num_attention_heads_per_layer": [2, 4, 2], "sliding_window": 4}
        # A cap so low that it takes effect.
        | {"moe_routed_scaling_factor": 1.5, "moe_router_logit_softcapping": 1.0},
    ),
    _case(
        *("afmoe", (1, 2), 7),
        {**QWEN, "num_experts": 7, "num_shared_experts": 2, "num_dense_layers": 1, "head_dim": 8}
        | {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
        | {"num_hidden_layers": 3, "sliding_window": 4, "mup_enabled": True, "route_scale": 1.5},
    ),
    _case(
        *("kimi_linear", (1, 2), 7),
        {**QWEN, **MLA, **DELTA, "q_lora_rank": None, "num_experts": 7, "num_shared_experts": 2}
        | {"layer_types": ["linear_attention", "full_attention", "linear_attention"]},
    ),
    _case(
        *("bailing_hybrid-groups", (1, 2), 12),
        {**QWEN, **MLA, **DELTA, "num_experts": 12, "num_shared_experts": 2, "head_dim": 8}
        | {"layer_types": ["linear_attention", "linear_attention", "full_attention"]}
        | {"short_conv_kernel_size": 2, "n_group": 3, "topk_group": 2, "first_k_dense_replace": 1},
        top_k=3,
        groups=3,
    ),
    _case(
        *("deepseek_v32-groups", (1, 2), 12),
        {**GROUPS, **DSA},
        **{"top_k": 3, "groups": 3, "like": "deepseek_v3-groups"},
    ),
    _case(
        *("glm_moe_dsa", (1, 2), 7),
        {**DEEPSEEK, **MLA, **DSA, "indexer_types": ["full", "full", "shared"]},
    ),
    _case(
        *("glm4_moe_lite", (0, 2), 7),
        {**DEEPSEEK, **MLA, "mlp_layer_types": ["sparse", "dense", "sparse"]},
        like="laguna",
    ),
    _case(
        *("glm4v_moe", (1, 2), 7),
        {
            "text_config": {**COMMON, **DEEPSEEK, "head_dim": 8, "num_experts_per_tok": 2}
            | {"rope_parameters": {**ROPE, "mrope_section": [1, 1, 0]}},
            "vision_config": {**SIGHT, "depth": 1, "out_hidden_size": HIDDEN, "num_heads": 1},
        },
        **{"composite": True, "like": "glm5_next"},
    ),
    _case(
        *("glm5_next", (1, 2), 7),
        {
            "text_config": {**COMMON, **DEEPSEEK, **MLA, **DSA, **DELTA, **LIMIT}
            | {"layer_types": ["linear_attention", "linear_attention", "indexed_attention"]}
            | {"qk_rope_head_dim": 0, "mlp_layer_types": ["dense", "sparse", "sparse"]}
            | {"index_kpool": 2, "num_experts_per_tok": 2},
            "vision_config": {**SIGHT, "depth": 1, "out_hidden_size": HIDDEN, "num_heads": 1}
            | {"projection_intermediate_size": 8},
        },
        composite=True,
    ),
    _case(
        *("solar_open", (0, 1), 7),
        {"n_routed_experts": 7, "n_shared_experts": 2, "moe_intermediate_size": WIDTH}
        | {"head_dim": 8, "routed_scaling_factor": 1.5},
        like="deepseek_v3",
    ),
    _case(
        *("exaone_moe-groups", (1, 2), 12),
        {**QWEN, "num_experts": 12, "num_shared_experts": 2, "first_k_dense_replace": 1}
        | {"num_hidden_layers": 3, "head_dim": 8, "sliding_window": 4}
        | {"n_group": 3, "topk_group": 2},
        **{"top_k": 3, "groups": 3},
    ),
    _case(
        *("axk1-groups", (2, 4), 12),
        {**GROUPS, "num_hidden_layers": 5, "moe_layer_freq": 2},
        **{"top_k": 3, "groups": 3, "like": "deepseek_v3-groups"},
    ),
    _case(
        *("axk2", (1, 2), 7),
        {**DEEPSEEK, **MLA, **DSA, "gated_norm_rank": 4},
        like="glm_moe_dsa",
    ),
    _case(
        *("axk2-groups", (1, 2), 12),
        {**GROUPS, **DSA, "gated_norm_rank": 4},
        **{"top_k": 3, "groups": 3},
    ),
    _case(
        *("mimo_v2_flash", (1, 2), 7),
        {**QWEN, "n_routed_experts": 7, "num_hidden_layers": 3, "head_dim": 8, "v_head_dim": 8}
        | {"layer_types": WINDOWS, "sliding_window": 4, "routed_scaling_factor": 1.5},
        like="deepseek_v3",
    ),
    _case(
        *("beam-groups", (0, 2), 12),
        {**QWEN, "num_experts": 12, "n_group": 3, "topk_group": 2, "head_dim": 8}
        | {"mlp_layer_types": ["sparse", "dense", "sparse"], "num_hidden_layers": 3}
        | {"layer_types": WINDOWS, "sliding_window": 4},
        **{"top_k": 3, "groups": 3, "like": "exaone_moe-groups"},
    ),
    _case(
        *("hy_v4", (1, 2), 7),
        {**DEEPSEEK, **MLA, **DSA, **LIMIT, "indexer_types": ["full", "full", "shared"]},
        **{"fused_too": False, "like": "glm5_next"},
    ),
    _case(
        *("cohere2_moe", (1, 2), 7),
        {"num_experts": 7, "num_shared_experts": 2, "intermediate_size": WIDTH, "head_dim": 8}
        | {"prefix_dense_intermediate_size": 40, "first_k_dense_replace": 1, "sliding_window": 4}
        | {"num_hidden_layers": 3, "expert_selection_fn": "sigmoid"},
    ),
    _case(
        *("mellum", (0, 2), 7),
        {**QWEN, "num_experts": 7, "num_hidden_layers": 3, "head_dim": 8, "sliding_window": 4}
        | {"mlp_layer_types": ["sparse", "dense", "sparse"], "layer_types": WINDOWS},
        like="qwen3_moe",
    ),
    _case(
        *("flint", (0, 2), 7),
        {**QWEN_SHARED, "num_experts": 7, "num_hidden_layers": 3, "mlp_only_layers": [1]}
        | {"layer_types": WINDOWS, "sliding_window": 4, "head_dim": 8},
        like="qwen2_moe",
    ),
    _case(
        *("granitemoe_swa", (0, 1, 2), 6),
        {**LOCAL, "shared_intermediate_size": 40, "num_hidden_layers": 3}
        # A window of padding alone is not finite in float64.
        | {"layer_types": WINDOWS, "sliding_window": 8},
        **{"fused_too": False, "like": "granitemoeshared"},
    ),
    _case(
        *("qwen4_exp_text", (0, 1, 2), 7),
        {**QWEN3_5_TEXT, "hc_count": 2, "hc_lowrank": 4, "indexer_n_heads": 2}
        | {"indexer_kv_heads": 1, "indexer_head_dim": 8, "indexer_budget": 4}
        | {"indexer_compress_ratio": 2},
        like="qwen3_5_moe_text",
    ),
    _case(
        *("qwen3_vl_moe", (0, 2), 7),
        {
            "text_config": {**COMMON, **QWEN, "num_experts": 7, "num_hidden_layers": 3}
            | {"mlp_only_layers": [1], "head_dim": 8, "num_experts_per_tok": 2}
            | {"rope_parameters": {**ROPE, "mrope_section": [2, 1, 1]}},
            "vision_config": {**SIGHT, "depth": 1, "out_hidden_size": HIDDEN, "num_heads": 1}
            | {"deepstack_visual_indexes": []},
        },
        **{"fused_too": False, "composite": True},
    ),
    _case("qwen3_omni_moe_thinker", (0, 2), 7, THINKER, composite=True, like="qwen3_vl_moe"),
    _case(
        *("ernie4_5_moe", (1, 3), 7),
        {**QWEN, "moe_num_experts": 7, "moe_k": 2, "num_hidden_layers": 4}
        | {"moe_layer_start_index": 1, "moe_layer_interval": 2},
    ),
    _case(
        *("gpt_oss", (0, 1), 6),
        # A limit so low that it takes effect.
        {**LOCAL, "head_dim": 8, "sliding_window": 4, "swiglu_limit": 1.0},
        fused_too=False,
    ),
    _case("gemma4_text", (0, 1), 7, GEMMA4, fused_too=False),
    _case(
        *("gemma4", (0, 1), 7),
        {
            "text_config": {**COMMON, **GEMMA4},
            "vision_config": {**VISION, "num_attention_heads": 1, "num_key_value_heads": 1}
            | {"head_dim": 8, "patch_size": 2, "position_embedding_size": 16},
            "audio_config": {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
            | {"subsampling_conv_channels": [4, 4], "output_proj_dims": 8},
        },
        fused_too=False,
        composite=True,
    ),
    _case("hunyuan_v1_moe", (0, 1), 7, {**OLMOE, "moe_topk": 2, "head_dim": 8}),
    _case(
        *("jamba", (1, 3), 7),
        {**MAMBA, **OLMOE, "num_hidden_layers": 4, "mamba_dt_rank": 4}
        | {"attn_layer_period": 2, "attn_layer_offset": 0, "use_mamba_kernels": False},
    ),
    _case(
        *("lfm2_moe", (1, 2), 7),
        {**QWEN, "num_experts": 7, "num_hidden_layers": 3, "num_dense_layers": 1}
        | {"layer_types": ["conv", "full_attention", "conv"], "routed_scaling_factor": 1.5},
    ),
    _case(
        *("lfm2_moe-unbiased", (0, 1), 6),
        {**QWEN, "num_experts": 6, "num_dense_layers": 0, "use_expert_bias": False}
        | {"layer_types": ["conv", "full_attention"]},
        absent=("expert_bias",),
    ),
    _case(
        *("nemotron_h", (1, 3), 7),
        {**NEMOTRON, "intermediate_size": 40, "moe_shared_expert_intermediate_size": 32}
        | {"layers_block_type": ["mamba", "moe", "attention", "moe", "mlp"], "ssm_state_size": 8}
        | {"num_hidden_layers": 5, "mamba_num_heads": 4, "mamba_head_dim": 8, "n_groups": 1}
        | {"conv_kernel": 2, "chunk_size": 8, "use_mamba_kernels": False},
    ),
    _case(
        *("nemotron_h-latent", (1, 2), 7),
        {**NEMOTRON, "moe_latent_size": 8, "moe_shared_expert_intermediate_size": 32}
        | {"num_hidden_layers": 3, "layers_block_type": ["attention", "moe", "moe"]}
        | {"routed_scaling_factor": 1.5},
    ),
    _case(
        *("aria_text", (0, 1), 6),
        {"moe_num_experts": 6, "moe_topk": 2, "intermediate_size": WIDTH},
        fused_too=False,
    ),
    _case(
        *("aria", (0, 1), 6),
        {
            "text_config": {**COMMON, "model_type": "aria_text", "intermediate_size": WIDTH}
            | {"moe_num_experts": 6, "moe_topk": 2},
            "vision_config": {**VISION, "model_type": "idefics3_vision"}
            | {"num_attention_heads": 1, "image_size": 4, "patch_size": 2},
            "projector_patch_to_query_dict": {4: 2},
        },
        fused_too=False,
        composite=True,
    ),
    _case(
        *("deepseek_v4", (0, 1, 2, 3), 7),
        {"n_routed_experts": 7, "moe_intermediate_size": WIDTH, "num_hidden_layers": 4}
        | {"mlp_layer_types": ["hash_moe", "moe", "hash_moe", "moe"], "swiglu_limit": 1.0}
        | {"layer_types": V4_ATTENTION, "compress_rates": V4_RATES}
        | {"head_dim": 16, "partial_rotary_factor": 0.5, "q_lora_rank": 8, "sliding_window": 4}
        | {"hc_mult": 2, "hc_sinkhorn_iters": 3, "o_groups": 2, "o_lora_rank": 4}
        | {"index_n_heads": 1, "index_head_dim": 8, "index_topk": 2},
        hashed=(0, 2),
    ),
    _case("minimax_m3_vl_text", (0, 2), 7, MINIMAX_M3, fused_too=False),
    _case(
        *("minimax_m3_vl", (0, 2), 7),
        {
            "text_config": {**COMMON, **MINIMAX_M3, "model_type": "minimax_m3_vl_text"},
            "vision_config": {**EYE, "temporal_patch_size": 1, "spatial_merge_size": 1},
            **{"projector_hidden_size": 8, "image_token_index": 1, "video_token_index": 2},
        },
        composite=True,
    ),
    _case("mistral4", (1, 2), 12, MISTRAL4, top_k=3, groups=3, fused_too=False),
    _case(
        *("mistral3", (1, 2), 12),
        {
            "text_config": {**COMMON, **MISTRAL4, "model_type": "mistral4"},
            "vision_config": {**EYE, "head_dim": 8, "model_type": "pixtral"},
            **{"spatial_merge_size": 1, "image_token_index": 1, "tie_word_embeddings": False},
        },
        top_k=3,
        groups=3,
        fused_too=False,
        composite=True,
    ),
)
BY_NAME = {case.name: case for case in CASES}
# One of each kind: plain; dense layers, tied weights; groups, shared experts, a bias; transposed,
# interleaved, biased; without gates; composite; with other mixers between; in no block.
_NAMES = (
    *("olmoe", "qwen3_moe", "deepseek_v3-groups", "gpt_oss", "nemotron_h", "aria", "jamba"),
    "gemma4",
)
KINDS = [BY_NAME[name] for name in _NAMES]
# All; near copies are slow.
SOURCES = [
    pytest.param(case, id=str(case), marks=pytest.mark.slow if case.like else ()) for case in CASES
]


def cases_where(holds: Callable[[Case], bool]) -> list[Any]:
    """Those of `SOURCES` of which something is true, as parameters of a test."""
    return [source for source, case in zip(SOURCES, CASES, strict=True) if holds(case)]


# All, those of a kind that is there already in the slow part.
EVERY = [
    pytest.param(case, id=str(case), marks=() if case in KINDS else pytest.mark.slow)
    for case in CASES
]
# One of each path through the program, see `TWINS`.
DISTINCT = [param for param in EVERY if not (param.values[0].like or str(param.values[0]) in TWINS)]
