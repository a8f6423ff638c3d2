"""gpt-oss: stacked, transposed, with biases, and gate and up in alternating columns."""

from analysis.families.base import MoEFamily, RouterTensor

GPT_OSS = MoEFamily(
    model_type="gpt_oss",
    label="gpt-oss",
    gate_rule="top-k of the logits, then softmax over those",
    router="router",
    router_tensors=(RouterTensor("router.weight"), RouterTensor("router.bias")),
    can_exclude=True,
    projections={},
    is_transposed=True,
    has_bias=True,
    is_interleaved=True,
    count_keys=("num_local_experts", "num_experts"),
    width_key="intermediate_size",
)
