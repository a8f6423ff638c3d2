"""OLMoE: softmax over all experts, gate weights not renormalised by default."""

from analysis.families.base import MoEFamily

OLMOE = MoEFamily(
    model_type="olmoe",
    label="OLMoE",
    gate_rule="softmax, then top-k; renormalised only if norm_topk_prob",
    width_key="intermediate_size",
)
