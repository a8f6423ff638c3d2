"""OLMoE and FlexOlmo: softmax over all experts, gate weights not renormalised by default."""

from dataclasses import replace

from analysis.families.base import MoEFamily

OLMOE = MoEFamily(
    model_type="olmoe",
    label="OLMoE",
    gate_rule="softmax, then top-k; renormalised only if norm_topk_prob",
    width_key="intermediate_size",
    needs_own_head=True,
)
FLEX_OLMO = replace(OLMOE, model_type="flex_olmo", label="FlexOlmo")
