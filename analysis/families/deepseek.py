"""DeepSeekMoE-16B: the first DeepSeek MoE; gate weights renormalised only if norm_topk_prob."""

from analysis.families.base import MoEFamily, SharedExperts
from analysis.families.rules import with_frequency

DEEPSEEK = MoEFamily(
    model_type="deepseek",
    label="DeepSeekMoE",
    gate_rule="softmax, then top-k; renormalised only if norm_topk_prob",
    count_keys=("n_routed_experts",),
    is_sparse=with_frequency,
    shared=SharedExperts("moe_intermediate_size", "n_shared_experts", width_is_each=True),
)
