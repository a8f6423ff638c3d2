"""Released checkpoints quantised by others: GPTQ by optimum, AWQ by AutoAWQ, and small floats.

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
_FLOATS = (
    _packed("zai-org/GLM-4.5-Air-FP8", "GLM-4.5-Air", "fp8-channel"),
    _packed("nvidia/Qwen3-30B-A3B-NVFP4", "Qwen3-30B-A3B", "nvfp4"),
    _packed("unsloth/Qwen3-30B-A3B-bnb-4bit", "Qwen3-30B-A3B", "nf4"),
)
PACKED = {str(layout): layout for layout in (*_PACKED, *_FLOATS)}


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

FLOAT_SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "fp8-channel": {
        "quant_method": "compressed-tensors", "format": "float-quantized",
        "config_groups": {"group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "strategy": "channel", "type": "float"}}},
        "ignore": ["lm_head", *(f"model.layers.{layer}.mlp.gate" for layer in range(1, 47))]},
    "nvfp4": {
        "quant_method": "modelopt", "quant_algo": "NVFP4",
        "ignore": ["lm_head", *(f"model.layers.{layer}.mlp.gate" for layer in range(48))]},
    "nf4": {
        "quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_use_double_quant": True,
        "llm_int8_skip_modules": ["lm_head", "multi_modal_projector", "router", "mlp.gate"]},
}  # fmt: skip
Parts = dict[str, tuple[str, tuple[int, ...]]]


def _by_channel(stem: str, rows: int, columns: int) -> Parts:
    weight = ("F8_E4M3", (rows, columns))
    return {f"{stem}.weight": weight, f"{stem}.weight_scale": ("BF16", (rows, 1))}


def _nvfp4(stem: str, rows: int, columns: int) -> Parts:
    """Two floats in a byte, a scale for 16 of them, one for all, and one of the inputs."""
    return {
        f"{stem}.weight": ("U8", (rows, columns // 2)),
        f"{stem}.weight_scale": ("F8_E4M3", (rows, columns // 16)),
        f"{stem}.weight_scale_2": ("F32", ()),
        f"{stem}.input_scale": ("F32", ()),
    }


def _nf4(stem: str, rows: int, columns: int) -> Parts:
    """bitsandbytes: one column of bytes, quantised scales, and two tables."""
    count = rows * columns
    return {
        f"{stem}.weight": ("U8", (count // 2, 1)),
        f"{stem}.weight.absmax": ("U8", (count // 64,)),
        f"{stem}.weight.nested_absmax": ("F32", (-(-count // 64 // 256),)),
        f"{stem}.weight.nested_quant_map": ("F32", (256,)),
        f"{stem}.weight.quant_map": ("F32", (16,)),
        f"{stem}.weight.quant_state.bitsandbytes__nf4": ("U8", (190,)),
    }


SPLITS = {"fp8-channel": _by_channel, "nvfp4": _nvfp4, "nf4": _nf4}
