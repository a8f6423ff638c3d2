"""Large OLMoE-shaped checkpoints of random bf16 bytes, written without a model."""

import json
from math import prod
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file


def _random(generator: np.random.Generator, *shape: int) -> torch.Tensor:
    """Values between 1/8 and 1/2 in absolute size, drawn as bits: gigabytes of it take seconds."""
    bits = np.frombuffer(generator.bytes(2 * prod(shape)), np.uint16) & 0x80FF | 0x3E00
    return torch.from_numpy(bits.reshape(shape)).view(torch.bfloat16)


def write_checkpoint(
    path: Path, layers: int, experts: int, widths: tuple[int, int], *, fused: bool = False
) -> None:
    """One shard a layer; `widths` are hidden size and expert width."""
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
    index = {"metadata": {}, "weight_map": weight_map}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
