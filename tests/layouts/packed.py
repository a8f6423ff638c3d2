"""Released checkpoints in packed integers: GPTQ by optimum and AWQ by AutoAWQ, as they are named.

Of each layer's matrices all are packed but routers and the gates of shared experts.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from layouts.published import LAYOUTS, Layout

GROUP = 128
_ATTENTION = [[f"self_attn.{part}_proj" for part in "kvq"], ["self_attn.o_proj"]]
_SHARED = [
    [f"mlp.shared_expert.{part}_proj" for part in ("up", "gate")],
    ["mlp.shared_expert.down_proj"],
]


def _packed(name: str, source: str, stored: str) -> Layout:
    return replace(LAYOUTS[source], name=name, stored=stored, nbytes=None, tensors=None)


_PACKED = (
    _packed("Qwen/Qwen1.5-MoE-A2.7B-Chat-GPTQ-Int4", "Qwen1.5-MoE-A2.7B", "gptq"),
    _packed("casperhansen/mixtral-instruct-awq", "Mixtral-8x7B-v0.1", "awq"),
)
PACKED = {str(layout): layout for layout in _PACKED}


def gptq_settings(experts: int) -> dict[str, Any]:
    """`quantization_config` of a Qwen2-MoE, which lists every expert of a layer by its number."""
    numbers = range(experts)
    inner = [f"mlp.experts.{number}.{part}_proj" for part in ("up", "gate") for number in numbers]
    last = [f"mlp.experts.{number}.down_proj" for number in numbers]
    return {
        "quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False, "sym": True,
        "true_sequential": True,
        "modules_in_block_to_quantize": [*_ATTENTION, *_SHARED, inner, last],
    }  # fmt: skip


AWQ_SETTINGS: Mapping[str, Any] = {
    "quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm", "zero_point": True,
    "modules_to_not_convert": ["gate"],
}  # fmt: skip
