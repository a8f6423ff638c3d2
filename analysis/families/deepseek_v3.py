"""DeepSeek-V3 and the models with its router: sigmoid, a correction bias, groups of experts."""

from dataclasses import replace

from analysis.families.base import GroupRule, MoEFamily, RouterTensor, SharedExperts
from analysis.families.rules import after_first

DEEPSEEK_V3 = MoEFamily(
    model_type="deepseek_v3",
    label="DeepSeek-V3",
    gate_rule="sigmoid; selection by sigmoid + correction bias; renormalised if norm_topk_prob",
    router_tensors=(RouterTensor("gate.weight"), RouterTensor("gate.e_score_correction_bias")),
    can_exclude=True,
    count_keys=("n_routed_experts", "num_local_experts"),
    defaults={"first_k_dense_replace": 3, "n_group": 8, "topk_group": 4},
    is_sparse=after_first("first_k_dense_replace"),
    groups=GroupRule(2),
    shared=SharedExperts("moe_intermediate_size", "n_shared_experts", width_is_each=True),
    appended_heads_key="num_nextn_predict_layers",
    engine_keys=("topk_method", "scoring_func"),
)
GLM4_MOE = replace(
    DEEPSEEK_V3,
    model_type="glm4_moe",
    label="GLM-4.5",
    defaults={"first_k_dense_replace": 1},
    engine_keys=("head_dim",),
)
# The text model of Kimi-K2.5 and K2.6, whose other part sees images. Published names say `layers`;
# transformers 5.23 reads them, but saves `blocks`, as it renames those of the vision part back.
KIMI_K25 = replace(
    DEEPSEEK_V3,
    model_type="kimi_k25",
    label="Kimi-K2.5",
    trunks=(
        *("language_model.model.layers", "language_model.model.blocks"),
        "model.language_model.layers",
    ),
    module_trunks=("model.language_model.layers",),
    config_path=("text_config",),
    auto_class="AutoModelForImageTextToText",
    appended_heads_key="",  # published without heads
)
DOTS1 = replace(DEEPSEEK_V3, model_type="dots1", label="dots.llm1", defaults={})
