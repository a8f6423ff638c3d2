"""Cohere's MoE: the layers before the first with experts may have a width of their own."""

from analysis.families.base import MoEFamily, SharedExperts
from analysis.families.rules import by_mlp_types

COHERE2_MOE = MoEFamily(
    model_type="cohere2_moe",
    label="Cohere2-MoE",
    gate_rule="top-k of the logits, then softmax or sigmoid over those, as expert_selection_fn "
    "says; sigmoids renormalised if norm_topk_prob",
    width_key="intermediate_size",
    width_shared_with="the dense MLPs, unless prefix_dense_intermediate_size is given",
    is_width_shared=lambda config: "prefix_dense_intermediate_size" not in config,
    is_sparse=by_mlp_types,
    shared=SharedExperts("intermediate_size", "num_shared_experts", width_is_each=True),
)
