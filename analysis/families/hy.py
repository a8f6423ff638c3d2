"""Tencent's Hy3: the router of MiniMax-M2, and shared experts, under names of its own on disk."""

from analysis.families.base import MoEFamily, RouterTensor, SharedExperts
from analysis.families.rules import after_first, by_kinds

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
    is_sparse=by_kinds("mlp_layer_types", after_first("first_k_dense_replace")),
    shared=SharedExperts(
        "moe_intermediate_size", "num_shared_experts", width_is_each=True, on_disk="shared_mlp"
    ),
)
