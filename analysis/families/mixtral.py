"""Mixtral and the models that took over its layout: w1, w3, w2 in `block_sparse_moe` on disk."""

from dataclasses import replace

from analysis.families.base import MoEFamily, RouterTensor

MIXTRAL = MoEFamily(
    model_type="mixtral",
    label="Mixtral",
    gate_rule="softmax, then top-k, renormalised",
    disk_block="block_sparse_moe",
    projections={"gate": "w1", "up": "w3", "down": "w2"},
    count_keys=("num_local_experts", "num_experts"),
    width_key="intermediate_size",
)
MINIMAX = replace(MIXTRAL, model_type="minimax", label="MiniMax")
MINIMAX_M2 = replace(
    MIXTRAL,
    model_type="minimax_m2",
    label="MiniMax-M2",
    gate_rule="sigmoid; selection by sigmoid + correction bias; renormalised",
    # The bias is the block's, which hands it to the router.
    router_tensors=(RouterTensor("gate.weight"), RouterTensor("e_score_correction_bias")),
    can_exclude=True,
    engine_keys=("scoring_func",),
)
PHIMOE = replace(
    MIXTRAL,
    model_type="phimoe",
    label="Phi-MoE",
    gate_rule="sparsemixer: two softmaxes over the logits near the largest; always two experts",
    router="router",
    router_tensors=(RouterTensor("router.weight", on_disk="gate.weight"),),
    fixed_top_k=2,
)
