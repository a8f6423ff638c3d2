"""Qwen's MoE models: some layers may be dense; later ones have a gated shared expert."""

from dataclasses import replace

from analysis.families.base import MoEFamily, SharedExperts
from analysis.families.rules import every_layer, with_step

_SHARED = SharedExperts("shared_expert_intermediate_size", note="its output has a gate of its own")

QWEN2_MOE = MoEFamily(
    model_type="qwen2_moe",
    label="Qwen2-MoE",
    gate_rule="softmax, then top-k; renormalised if norm_topk_prob",
    is_sparse=with_step,
    shared=_SHARED,
)
QWEN3_MOE = replace(
    QWEN2_MOE,
    model_type="qwen3_moe",
    label="Qwen3-MoE",
    # transformers 5 writes num_local_experts, version 4 and other engines read num_experts.
    write_count_keys=("num_experts", "num_local_experts"),
    engine_keys=("head_dim",),
    shared=None,
)
QWEN3_NEXT = replace(QWEN2_MOE, model_type="qwen3_next", label="Qwen3-Next")
QWEN3_5_MOE_TEXT = replace(
    QWEN2_MOE,
    model_type="qwen3_5_moe_text",
    label="Qwen3.5-MoE (text)",
    gate_rule="softmax, then top-k, renormalised",
    trunks=("model.layers", "model.language_model.layers"),
    is_sparse=every_layer,
)
QWEN3_5_MOE = replace(
    QWEN3_5_MOE_TEXT,
    model_type="qwen3_5_moe",
    label="Qwen3.5-MoE",
    # The text model alone, or the whole with its vision part.
    module_trunks=("model.layers", "model.language_model.layers"),
    config_path=("text_config",),
)
