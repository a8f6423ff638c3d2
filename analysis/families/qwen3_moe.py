"""Qwen3-MoE: some layers may be dense; gate weights renormalised if norm_topk_prob."""

from analysis.checkpoint import Config
from analysis.families.base import MoEFamily, whole_number


def _is_sparse(config: Config, layer: int) -> bool:
    step = whole_number({"decoder_sparse_step": 1, **config}, "decoder_sparse_step")
    return layer not in (config.get("mlp_only_layers") or ()) and (layer + 1) % step == 0


QWEN3_MOE = MoEFamily(
    model_type="qwen3_moe",
    label="Qwen3-MoE",
    gate_rule="softmax, then top-k; renormalised if norm_topk_prob",
    # transformers 5 writes num_local_experts, version 4 and other engines read num_experts.
    write_count_keys=("num_experts", "num_local_experts"),
    is_sparse=_is_sparse,
)
