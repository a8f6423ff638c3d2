"""DeepSeek-V2: softmax routing, in the large model among groups of experts."""

from analysis.families.base import GroupRule, MoEFamily, SharedExperts
from analysis.families.rules import after_first

DEEPSEEK_V2 = MoEFamily(
    model_type="deepseek_v2",
    label="DeepSeek-V2",
    gate_rule="softmax, then top-k, scaled, not renormalised",
    count_keys=("n_routed_experts", "num_experts"),
    is_sparse=after_first("first_k_dense_replace"),
    groups=GroupRule(1, lambda config: config.get("topk_method") == "group_limited_greedy"),
    shared=SharedExperts("moe_intermediate_size", "n_shared_experts", width_is_each=True),
)
