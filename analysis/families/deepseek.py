"""DeepSeekMoE-16B: the first DeepSeek MoE; gate weights renormalised only if norm_topk_prob."""

from analysis.checkpoint import Config
from analysis.families.base import MoEFamily, SharedExperts
from analysis.families.rules import index_of, whole_number


def _is_sparse(config: Config, layer: int) -> bool:
    step = whole_number({"moe_layer_freq": 1, **config}, "moe_layer_freq")
    return layer >= index_of(config, "first_k_dense_replace") and layer % step == 0


DEEPSEEK = MoEFamily(
    model_type="deepseek",
    label="DeepSeekMoE",
    gate_rule="softmax, then top-k; renormalised only if norm_topk_prob",
    count_keys=("n_routed_experts",),
    is_sparse=_is_sparse,
    shared=SharedExperts("moe_intermediate_size", "n_shared_experts", width_is_each=True),
)
