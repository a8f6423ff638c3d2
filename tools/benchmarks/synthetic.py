"""Random models of OLMoE's kind, and large checkpoints written shard by shard."""

import json
import struct
from collections.abc import Mapping
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, OlmoeConfig, PreTrainedConfig, PreTrainedModel

from analysis.checkpoint.opening import open_checkpoint
from analysis.model.describing import describe_model
from analysis.model.moe_model import MoEModel

# Bits of bf16 values; with a random lowest bit of the exponent up to four times as large.
_EIGHTH, _WEIGHT = 0x3E00, 0x3C00  # 1/8, and 1/128: of about 0.02, as models are initialised


def olmoe_config(layers: int, experts: int, widths: tuple[int, int], **more: Any) -> OlmoeConfig:
    """Top-8 of `experts` without special tokens; `widths`: hidden size, expert width."""
    values = {
        "vocab_size": 512,
        "hidden_size": widths[0],
        "intermediate_size": widths[1],
        "num_hidden_layers": layers,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "num_experts": experts,
        "num_experts_per_tok": 8,
        **dict.fromkeys(("eos_token_id", "pad_token_id", "bos_token_id")),
    }
    return OlmoeConfig(**(values | more))


def random_model(config: PreTrainedConfig) -> PreTrainedModel:
    """As initialised, in float32 and evaluation mode; seeded."""
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config).eval().requires_grad_(False)


def described(model: PreTrainedModel) -> MoEModel:
    """What the program understands of a model in memory."""
    with TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return describe_model(open_checkpoint(Path(folder)))


def _random(generator: np.random.Generator, *shape: int, least: int = _EIGHTH) -> torch.Tensor:
    """Values of 1 to 4 times `least` in absolute size, drawn as bits: gigabytes take seconds."""
    bits = np.frombuffer(generator.bytes(2 * prod(shape)), np.uint16) & 0x80FF | least
    return torch.from_numpy(bits.reshape(shape)).view(torch.bfloat16)


def shapes_on_disk(config: PreTrainedConfig) -> dict[str, dict[str, tuple[int, ...]]]:
    """Shard ("rest", "0", "1", ...: a layer each) -> tensor -> shape, as on the hub.

    One tensor per expert and projection: OLMoE, Qwen3-MoE and their like.
    """
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    shards: dict[str, dict[str, tuple[int, ...]]] = {}
    for name, tensor in model.state_dict().items():
        layer = name.split(".")[2] if ".layers." in name else "rest"
        found = shards.setdefault(layer, {})
        block, _, kind = name.rpartition(".")
        if not block.endswith(".experts"):
            found[name] = tuple(tensor.shape)
            continue
        experts, rows, columns = tensor.shape
        parts = ("gate_proj", "up_proj") if kind == "gate_up_proj" else ("down_proj",)
        for expert in range(experts):
            for part in parts:
                found[f"{block}.{expert}.{part}.weight"] = (rows // len(parts), columns)
    return shards


def _head_shapes(
    shapes: Mapping[str, Mapping[str, tuple[int, ...]]], layer: int, hidden: int
) -> dict[str, tuple[int, ...]]:
    """A prediction head beyond the last layer, of the same shapes: GLM's and DeepSeek's names."""
    last, prefix = str(layer - 1), f"model.layers.{layer}."
    inside = {
        name.replace(f".layers.{last}.", f".layers.{layer}."): shape
        for name, shape in shapes[last].items()
    }
    norms = {f"{prefix}{name}.weight": (hidden,) for name in ("enorm", "hnorm", "shared_head.norm")}
    return inside | norms | {f"{prefix}eh_proj.weight": (hidden, 2 * hidden)}


def write_model(folder: Path, config: PreTrainedConfig, *, has_head: bool = False) -> int:
    """A random model of this configuration that loads and runs; returns its bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    raw = json.loads(config.to_json_string())
    (folder / "config.json").write_text(json.dumps(raw | {"dtype": "bfloat16"}))
    generator = np.random.default_rng(0)
    weight_map: dict[str, str] = {}
    total = 0
    by_shard = shapes_on_disk(config)
    if has_head:
        depth = config.num_hidden_layers
        by_shard[str(depth)] = _head_shapes(by_shard, depth, config.hidden_size)
    for shard, shapes in by_shard.items():
        file = f"model-{shard}.safetensors"
        total += _write_shard(folder / file, shapes, generator)
        weight_map |= dict.fromkeys(shapes, file)
    _write_index(folder, weight_map)
    return total


def _write_shard(
    path: Path, shapes: Mapping[str, tuple[int, ...]], generator: np.random.Generator
) -> int:
    """A shard of random bfloat16 tensors, one of them in memory at a time; returns their bytes."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        start, end = end, end + 2 * prod(shape)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, shape in shapes.items():
            ones = torch.ones(shape, dtype=torch.bfloat16) if "norm" in name else None
            tensor = _random(generator, *shape, least=_WEIGHT) if ones is None else ones
            file.write(tensor.view(torch.uint8).numpy().data)
    return end


def _write_index(folder: Path, weight_map: Mapping[str, str]) -> None:
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def write_checkpoint(
    path: Path, layers: int, experts: int, widths: tuple[int, int], *, fused: bool = False
) -> None:
    """OLMoE's experts and routers alone, one shard a layer; `widths`: hidden size, expert width."""
    hidden, width = widths
    generator = np.random.default_rng(0)
    weight_map: dict[str, str] = {}
    for layer in range(layers):
        prefix = f"model.layers.{layer}.mlp."
        tensors = {prefix + "gate.weight": _random(generator, experts, hidden)}
        if fused:
            tensors[prefix + "experts.gate_up_proj"] = _random(
                generator, experts, 2 * width, hidden
            )
            tensors[prefix + "experts.down_proj"] = _random(generator, experts, hidden, width)
        else:
            for expert in range(experts):
                for name in ("gate_proj", "up_proj"):
                    key = f"{prefix}experts.{expert}.{name}.weight"
                    tensors[key] = _random(generator, width, hidden)
                key = f"{prefix}experts.{expert}.down_proj.weight"
                tensors[key] = _random(generator, hidden, width)
        shard = f"model-{layer + 1:05d}-of-{layers:05d}.safetensors"
        save_file(tensors, path / shard, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(tensors, shard)
    config = {
        "model_type": "olmoe",
        "num_hidden_layers": layers,
        "num_experts": experts,
        "num_experts_per_tok": 8,
        "hidden_size": hidden,
        "intermediate_size": width,
    }
    (path / "config.json").write_text(json.dumps(config))
    _write_index(path, weight_map)
