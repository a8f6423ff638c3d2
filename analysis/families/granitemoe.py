"""Granite's MoE models: experts stacked on disk too, as `input_linear` and `output_linear`."""

from dataclasses import replace

from analysis.families.base import MoEFamily, RouterTensor, SharedExperts
from analysis.families.rules import AllOrNone

GRANITEMOE = MoEFamily(
    model_type="granitemoe",
    label="GraniteMoE",
    gate_rule="top-k of the logits, then softmax over those",
    disk_block="block_sparse_moe",
    module_block="block_sparse_moe",
    router="router",
    router_tensors=(RouterTensor("router.weight", on_disk="router.layer.weight"),),
    projections={},
    stacked_on_disk={"gate_up": "input_linear.weight", "down": "output_linear.weight"},
    count_keys=("num_local_experts",),
    width_key="intermediate_size",
    needs_transformers="5.21",  # its router returned ids first before
)
GRANITEMOESHARED = replace(
    GRANITEMOE,
    model_type="granitemoeshared",
    label="GraniteMoE with shared experts",
    shared=SharedExperts("shared_intermediate_size"),
)
GRANITEMOEHYBRID = replace(
    GRANITEMOESHARED,
    model_type="granitemoehybrid",
    label="GraniteMoE hybrid",
    is_sparse=AllOrNone(lambda config: config.get("num_local_experts") != 0),  # 0 in 4.0 Micro
)
GRANITEMOE_SWA = replace(
    GRANITEMOESHARED,
    model_type="granitemoe_swa",
    label="GraniteMoE with sliding windows",
    router_tensors=(RouterTensor("router.weight"),),
    stacked_on_disk={},
)
