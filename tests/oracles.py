"""Physical pruning of a loaded model, written out by hand: the oracle of masking and export."""

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

TOKENS = torch.randint(0, 96, (2, 24), generator=torch.Generator().manual_seed(3))


def physically_pruned(model: PreTrainedModel, kept: Mapping[int, Sequence[int]]) -> PreTrainedModel:
    """A copy whose layers hold the kept experts only."""
    pruned = copy.deepcopy(model)
    for layer, ids in kept.items():
        block, ids = pruned.model.layers[layer].mlp, list(ids)
        for module, name in (
            (block.gate, "weight"),
            (block.experts, "gate_up_proj"),
            (block.experts, "down_proj"),
        ):
            setattr(module, name, nn.Parameter(getattr(module, name).detach()[ids]))
            module.num_experts = len(ids)
    return pruned


def logits_of(model: PreTrainedModel) -> torch.Tensor:
    """Logits of a few fixed tokens."""
    with torch.no_grad():
        return model(TOKENS, use_cache=False).logits


def last_layer_on_disk(folder: Path) -> dict[str, Any]:
    """Where accelerate puts a model of two layers."""
    names = ("model.embed_tokens", "model.norm", "model.rotary_emb", "lm_head", "model.layers.0")
    device_map = {**dict.fromkeys(names, "cpu"), "model.layers.1": "disk"}
    return {"device_map": device_map, "offload_folder": folder}


def greedy(model: PreTrainedModel, ids: Sequence[int], count: int) -> list[int]:
    """The most probable token, again and again, each time by a forward over all before it."""
    written = list(ids)
    with torch.no_grad():
        while len(written) < len(ids) + count:
            logits = model(input_ids=torch.tensor([written]), use_cache=False).logits[0, -1]
            written.append(int(logits.argmax()))
    return written[len(ids) :]
