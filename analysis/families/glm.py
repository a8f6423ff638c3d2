"""GLM from 4.5 on: the router of DeepSeek-V3, with vision in a part of its own."""

from dataclasses import replace

from analysis.families.deepseek_v3 import DEEPSEEK_V3
from analysis.families.rules import by_mlp_types, hands_on_more

_COMPOSITE = ("model.language_model.layers",)

GLM4_MOE = replace(
    DEEPSEEK_V3,
    model_type="glm4_moe",
    label="GLM-4.5",
    defaults={"first_k_dense_replace": 1},
    engine_keys=("head_dim",),
)
GLM4_MOE_LITE = replace(
    GLM4_MOE,
    model_type="glm4_moe_lite",
    label="GLM-4.7-Flash",
    is_sparse=by_mlp_types,
    engine_keys=(),
)
GLM4V_MOE = replace(
    GLM4_MOE,
    model_type="glm4v_moe",
    label="GLM-4.5V",
    trunks=_COMPOSITE,
    module_trunks=_COMPOSITE,
    config_path=("text_config",),
    auto_class="AutoModelForImageTextToText",
    appended_heads_key="",
    engine_keys=(),
)
GLM_MOE_DSA = replace(
    GLM4_MOE_LITE,
    model_type="glm_moe_dsa",
    label="GLM-5",
    defaults={"first_k_dense_replace": 3},
    inseparable=hands_on_more,
    needs_transformers="5.17",  # its sparse attention chose padding among the tokens before
)
GLM5_NEXT = replace(
    GLM4V_MOE,
    model_type="glm5_next",
    label="GLM-5.3",
    defaults={"first_k_dense_replace": 3},
    inseparable=hands_on_more,
    is_sparse=by_mlp_types,
    single=(*GLM4V_MOE.single, ".A_log", ".dt_bias"),
    needs_transformers="5.18",
)
