"""Mixtral: gate weights renormalised over the selected experts; w1, w3, w2 on disk."""

from analysis.families.base import MoEFamily

MIXTRAL = MoEFamily(
    model_type="mixtral",
    label="Mixtral",
    gate_rule="softmax, then top-k, renormalised",
    disk_block="block_sparse_moe",
    projections={"gate": "w1", "up": "w3", "down": "w2"},
    count_keys=("num_local_experts", "num_experts"),
    width_key="intermediate_size",
)
