"""LFM2-MoE: convolution and attention layers; sigmoid routing with a bias that the block holds."""

from analysis.families.base import MoEFamily, RouterTensor
from analysis.families.rules import after_first

LFM2_MOE = MoEFamily(
    model_type="lfm2_moe",
    label="LFM2-MoE",
    gate_rule="sigmoid; selection by sigmoid + bias if use_expert_bias; renormalised if "
    "norm_topk_prob",
    disk_block="feed_forward",
    module_block="feed_forward",
    router_tensors=(RouterTensor("gate.weight"), RouterTensor("expert_bias")),
    can_exclude=True,
    projections={"gate": "w1", "up": "w3", "down": "w2"},
    defaults={"num_dense_layers": 2},
    is_sparse=after_first("num_dense_layers"),
    single=(".expert_bias",),
)
