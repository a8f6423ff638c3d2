"""Qwen's MoE models and those with their router: dense layers, shared experts that have a gate."""

from dataclasses import replace

from analysis.families.base import MoEFamily, SharedExperts
from analysis.families.rules import by_kinds, every_layer, with_step

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
QWEN3_NEXT = replace(
    QWEN2_MOE, model_type="qwen3_next", label="Qwen3-Next", has_uncounted_head=True
)
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
QWEN3_VL_MOE = replace(
    QWEN3_MOE,
    model_type="qwen3_vl_moe",
    label="Qwen3-VL-MoE",
    gate_rule="softmax, then top-k, renormalised",
    trunks=("model.language_model.layers",),
    module_trunks=("model.language_model.layers",),
    projections={},
    # Published ones are (experts, in, out); transformers 5 saves what it has loaded.
    may_be_transposed=True,
    config_path=("text_config",),
    auto_class="AutoModelForImageTextToText",
)
# Speech comes from a talker with experts of its own, which are no part of the text model.
QWEN3_OMNI_MOE = replace(
    QWEN3_MOE,
    model_type="qwen3_omni_moe",
    label="Qwen3-Omni-MoE",
    trunks=("thinker.model.layers", "thinker.model.language_model.layers"),
    module_trunks=("model.language_model.layers",),
    config_path=("thinker_config", "text_config"),
    auto_class="Qwen3OmniMoeThinkerForConditionalGeneration",
    loads_part=True,
    needs_transformers="5.23",  # 5.20 did not pass the tests of its parts; 5.21 and 5.22 not tried
)
QWEN3_OMNI_MOE_THINKER = replace(
    QWEN3_OMNI_MOE,
    model_type="qwen3_omni_moe_thinker",
    label="Qwen3-Omni-MoE (thinker)",
    trunks=(*QWEN3_OMNI_MOE.trunks, "model.layers", "model.language_model.layers"),
    config_path=("text_config",),
    auto_class="AutoModelForImageTextToText",
    loads_part=False,
)
QWEN4_EXP_TEXT = replace(
    QWEN3_5_MOE_TEXT,
    model_type="qwen4_exp_text",
    label="Qwen4-Exp (text)",
    gate_rule=QWEN2_MOE.gate_rule,
    needs_transformers="5.16",
)
MELLUM = replace(
    QWEN3_MOE,
    model_type="mellum",
    label="Mellum 2",
    is_sparse=by_kinds("mlp_layer_types", every_layer),
)
FLINT = replace(
    QWEN2_MOE,
    model_type="flint",
    label="Flint",
    gate_rule="sigmoid, then top-k; renormalised if norm_topk_prob",
    defaults={"mlp_only_layers": [0, 1]},
    shared=SharedExperts("shared_expert_intermediate_size"),
    single=(".gate.weight",),
    needs_transformers="5.21",
)
