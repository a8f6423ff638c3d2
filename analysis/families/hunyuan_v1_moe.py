"""Hunyuan: the router's matrix lies in a module of its own, always in float32."""

from analysis.families.base import MoEFamily, RouterTensor, SharedExperts

HUNYUAN_V1_MOE = MoEFamily(
    model_type="hunyuan_v1_moe",
    label="Hunyuan-MoE",
    gate_rule="softmax, then top-k, renormalised",
    router_tensors=(RouterTensor("gate.wg.weight"),),
    top_k_key="moe_topk",
    width_key="intermediate_size",
    width_shared_with="the shared MLP",
    allows_lists=True,
    shared=SharedExperts("intermediate_size"),
    single=(".gate.wg.weight",),
)
