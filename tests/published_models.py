"""Published models by their config.json, which says the dtype by the key of its time."""

import json
from pathlib import Path
from typing import Any

from analysis.calibration.config_outline import outline_model
from layouts.published import LAYOUTS


def _stored(name: str, **more: Any) -> dict[str, Any]:
    return {**LAYOUTS[name].config, "torch_dtype": "bfloat16", **more}


OLMOE = {**LAYOUTS["OLMoE-1B-7B-0924"].config, "dtype": "bfloat16"}
DEEPSEEK = _stored("DeepSeek-V2-Lite")
ERNIE = LAYOUTS["ERNIE-4.5-21B-A3B-PT"].config  # which does not say its dtype
QWEN3 = _stored("Qwen3-30B-A3B")
MIXTRAL = _stored("Mixtral-8x7B-v0.1")
GLM_AIR = _stored("GLM-4.5-Air")
DEEPSEEK_R1 = _stored(
    "DeepSeek-V3",
    quantization_config={
        **{"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic"},
        "weight_block_size": [128, 128],
    },
)
GPT_OSS = {
    **LAYOUTS["gpt-oss-20b"].config,
    "attention_bias": True,
    "quantization_config": {
        "quant_method": "mxfp4",
        "modules_to_not_convert": [
            *("model.layers.*.self_attn", "model.layers.*.mlp.router"),
            *("model.embed_tokens", "lm_head"),
        ],
    },
}


def hollow_checkpoint(folder: Path, config: dict[str, Any]) -> None:
    """Write a checkpoint with real headers and a hole for each weight: it takes no disk."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    (shard,) = outline_model(str(folder)).checkpoint.shards
    header = {
        entry.name: {
            "dtype": entry.dtype,
            "shape": entry.shape,
            "data_offsets": [entry.start, entry.end],
        }
        for entry in shard.tensors
    }
    packed = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    packed += b" " * (-len(packed) % 8)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(packed).to_bytes(8, "little") + packed)
        file.truncate(8 + len(packed) + shard.tensors[-1].end)
