"""Kimi-Linear and Ling-3.0: DeepSeek-V3's router among layers of linear attention.

Both come with keys of their own and with names that only their checkpoints have.
"""

from dataclasses import replace

from analysis.families.base import RouterTensor, SharedExperts
from analysis.families.deepseek_v3 import DEEPSEEK_V3
from analysis.families.rules import by_mlp_types

KIMI_LINEAR = replace(
    DEEPSEEK_V3,
    model_type="kimi_linear",
    label="Kimi-Linear",
    disk_block="block_sparse_moe",
    projections={"gate": "w1", "up": "w3", "down": "w2"},
    count_keys=("num_experts", "num_local_experts"),
    aliases={
        "num_experts_per_token": "num_experts_per_tok",
        "num_expert_group": "n_group",
        "num_shared_experts": "n_shared_experts",
    },
    defaults={"first_k_dense_replace": 1},
    appended_heads_key="",  # of another layout, if any
    engine_keys=(),
    is_sparse=by_mlp_types,
    single=(),
    needs_transformers="5.17",
)
BAILING_HYBRID = replace(
    KIMI_LINEAR,
    model_type="bailing_hybrid",
    label="Ling-3.0",
    disk_block=DEEPSEEK_V3.disk_block,
    projections=DEEPSEEK_V3.projections,
    router_tensors=(
        RouterTensor("gate.weight"),
        RouterTensor("gate.e_score_correction_bias", on_disk="gate.expert_bias"),
    ),
    defaults={"first_k_dense_replace": 2, "n_group": 8, "topk_group": 4},
    shared=SharedExperts(
        "moe_intermediate_size",
        "n_shared_experts",
        width_is_each=True,
        # vLLM and MLX multiply it by the number; llama.cpp takes it for the width of all together.
        each_key="moe_shared_expert_intermediate_size",
    ),
    single=(".A_log", ".dt_bias"),
    needs_transformers="5.20",
)
