"""Tencent's Hy3 has the router of MiniMax-M2 under names of its own on disk; Hy4 DeepSeek-V3's."""

from dataclasses import replace

from analysis.families.base import MoEFamily, RouterTensor, SharedExperts
from analysis.families.deepseek_v3 import V3_ROUTER
from analysis.families.rules import by_mlp_types, hands_on_more

HY_V3 = MoEFamily(
    model_type="hy_v3",
    label="Hy3",
    gate_rule="sigmoid; selection by sigmoid + correction bias; renormalised",
    # The bias is the block's, which hands it to the router.
    router_tensors=(
        RouterTensor("gate.weight", on_disk="router.gate.weight"),
        RouterTensor("e_score_correction_bias", on_disk="expert_bias"),
    ),
    can_exclude=True,
    aliases={"expert_hidden_dim": "moe_intermediate_size"},
    defaults={"first_k_dense_replace": 1},
    is_sparse=by_mlp_types,
    shared=SharedExperts(
        "moe_intermediate_size", "num_shared_experts", width_is_each=True, on_disk="shared_mlp"
    ),
)
HY_V4 = replace(
    V3_ROUTER,
    model_type="hy_v4",
    label="Hy4",
    projections={},
    inseparable=hands_on_more,
    defaults={"first_k_dense_replace": 1},
    is_sparse=by_mlp_types,
    single=(
        *V3_ROUTER.single,
        *(
            f".hc_{part}_layer.hc_{suffix}"
            for part in ("attn", "mlp")
            for suffix in ("base", "fn", "scale")
        ),
    ),
    needs_transformers="5.17",
)
