"""Trinity (AfMoE): the router's matrix lies in a module of its own, the bias in the block."""

from analysis.families.base import MoEFamily, RouterTensor, SharedExperts
from analysis.families.rules import after_first

AFMOE = MoEFamily(
    model_type="afmoe",
    label="Trinity",
    gate_rule="sigmoid; selection by sigmoid + bias; renormalised",
    router="router",
    router_tensors=(RouterTensor("router.gate.weight"), RouterTensor("expert_bias")),
    can_exclude=True,
    defaults={"num_dense_layers": 1},
    is_sparse=after_first("num_dense_layers"),
    shared=SharedExperts("moe_intermediate_size", "num_shared_experts", width_is_each=True),
)
