"""Tiny random MoE models on disk, with awkward sizes: counts that are no powers of two."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    MixtralConfig,
    OlmoeConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen3MoeConfig,
)

from pruning.measures.store import SEAL, seal_of

# The corpus that the pages are tested with, whose content is seeded.
ROWS = "rows.jsonl@d2bddf0a"
MODEL_TYPES = ("olmoe", "qwen3_moe", "mixtral")
NUM_EXPERTS = {"olmoe": 7, "qwen3_moe": 6, "mixtral": 6}
# Layer 1 of the Qwen3-MoE model is dense, so its sparse layers are not 0..n-1.
SPARSE_LAYERS = {"olmoe": (0, 1, 2), "qwen3_moe": (0, 2, 3), "mixtral": (0, 1, 2)}
TOP_K = 2
VOCAB = 96


def resealed(content: dict[str, Any]) -> str:
    """The text of a record with this content, as this program would write it."""
    content.pop(SEAL, None)
    return json.dumps({**content, SEAL: seal_of(content)})


def put(*path: Any, to: Any) -> Callable[[Any], None]:
    """A change of JSON: what lies at the end of a path of keys and positions becomes this."""

    def change(raw: Any) -> None:
        *where, last = path
        for key in where:
            raw = raw[key]
        raw[last] = to

    return change


def edit_json(file: Path, **changes: Any) -> None:
    """Set keys of a JSON file; None removes one."""
    raw = json.loads(file.read_text()) | changes
    dropped = {key for key, value in changes.items() if value is None}
    file.write_text(json.dumps({key: raw[key] for key in raw if key not in dropped}))


def set_byte(file: Path, offset: int, value: int | None = None) -> None:
    """Another byte of a file: this value, or its lowest bit turned."""
    raw = bytearray(file.read_bytes())
    raw[offset] = raw[offset] ^ 1 if value is None else value
    file.write_bytes(raw)


def as_gib(size: int) -> str:
    """Bytes as an exact decimal of GiB: 2^30 divides 10^30."""
    return f"{size * 5**30}e-30"


def tiny_config(model_type: str, **changes: Any) -> PreTrainedConfig:
    """A configuration of a few thousand parameters; widths suit grouped_mm in bf16."""
    common = {
        "vocab_size": VOCAB,
        "hidden_size": 16,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 64,
        "num_experts_per_tok": TOP_K,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    if model_type == "olmoe":
        own = {"num_experts": NUM_EXPERTS["olmoe"], "intermediate_size": 24}
        return OlmoeConfig(**{**common, **own, **changes})
    if model_type == "qwen3_moe":
        own = {
            "num_experts": NUM_EXPERTS["qwen3_moe"],
            "num_hidden_layers": 4,
            "mlp_only_layers": [1],
            "moe_intermediate_size": 24,
            "intermediate_size": 40,
            "head_dim": 8,
            "norm_topk_prob": True,
            "tie_word_embeddings": True,
        }
        return Qwen3MoeConfig(**{**common, **own, **changes})
    own = {"num_local_experts": NUM_EXPERTS["mixtral"], "intermediate_size": 24}
    return MixtralConfig(**{**common, **own, **changes})


@dataclass(frozen=True)
class TinyCheckpoint:
    """A checkpoint on disk and the model that it was saved from."""

    path: Path
    model: PreTrainedModel


def tiny_model(
    model_type: str, *, dtype: torch.dtype = torch.float32, seed: int = 0, **changes: Any
) -> PreTrainedModel:
    """A random model in evaluation mode; seeded without touching the global generator."""
    config = tiny_config(model_type, **changes)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
        # Stock initialisation is so narrow that every expert computes nearly the same.
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "norm" not in name:
                    parameter.normal_(std=0.3)
    return model.eval()


def tiny_checkpoint(
    path: Path,
    model_type: str,
    *,
    fused: bool = False,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    shards: int = 3,
) -> TinyCheckpoint:
    """Save a tiny model: per-expert tensors or stacked ones, in about `shards` files."""
    model = tiny_model(model_type, dtype=dtype, seed=seed)
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    limit = f"{max(1, size // shards // 1000 + 1)}KB" if shards > 1 else "1GB"
    model.save_pretrained(path, max_shard_size=limit, save_original_format=not fused)
    return TinyCheckpoint(path, model)
