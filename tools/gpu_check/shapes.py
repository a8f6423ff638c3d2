"""Random models of published shapes, with as many layers as memory, disk and time hold."""

import json
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import OlmoeConfig, PreTrainedConfig, Qwen3MoeConfig

from analysis.calibration.free import free_memory
from analysis.errors import UserError
from tools.benchmarks.synthetic import shapes_on_disk, write_model

_OF_FREE = 0.6  # of free memory may be taken by the weights
_COPIES_ON_DISK = 2.5  # the model, half of it exported, half of it offloaded, and room
_PASSES = 16  # over the model, in all parts together

# OLMoE-1B-7B-0924 and Qwen3-30B-A3B as published.
_OLMOE = {
    "vocab_size": 50_304, "hidden_size": 2048, "intermediate_size": 1024, "num_hidden_layers": 16,
    "num_attention_heads": 16, "num_key_value_heads": 16, "num_experts": 64,
    "num_experts_per_tok": 8, "norm_topk_prob": False, "tie_word_embeddings": False,
}  # fmt: skip
_QWEN3 = {
    "vocab_size": 151_936, "hidden_size": 2048, "intermediate_size": 6144,
    "moe_intermediate_size": 768, "num_hidden_layers": 48, "num_attention_heads": 32,
    "num_key_value_heads": 4, "head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8,
    "norm_topk_prob": True, "tie_word_embeddings": False,
}  # fmt: skip
_TINY = _OLMOE | {
    "vocab_size": 96, "hidden_size": 32, "intermediate_size": 16, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 4, "num_experts": 8, "num_experts_per_tok": 2,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Shape:
    """A configuration, and the random sequences that are run."""

    kind: type[PreTrainedConfig]
    values: Mapping[str, int]
    rows: int = 16
    seq_len: int = 512
    batch_size: int = 8
    is_large: bool = True  # so that times say something, and the CPU takes long

    def config(self, layers: int) -> PreTrainedConfig:
        """The configuration with this many layers."""
        special = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"))
        architecture = self.kind.__name__.removesuffix("Config") + "ForCausalLM"
        own = {**self.values, **special, "num_hidden_layers": layers}
        return self.kind(architectures=[architecture], **own)

    @property
    def layers(self) -> int:
        """As published."""
        return int(self.values["num_hidden_layers"])

    def token_ids(self) -> np.ndarray:
        """(rows, seq_len), the same in every run."""
        size, vocabulary = (self.rows, self.seq_len), self.config(1).vocab_size
        return np.random.default_rng(0).integers(0, vocabulary, size, dtype=np.int32)


SHAPES = {
    "olmoe-7b": Shape(OlmoeConfig, _OLMOE),
    "qwen3-30b": Shape(Qwen3MoeConfig, _QWEN3),
    "tiny": Shape(OlmoeConfig, _TINY, rows=4, seq_len=32, batch_size=2, is_large=False),
}


@dataclass(frozen=True, slots=True)
class World:
    """A written model and its corpus."""

    shape: Shape
    device: torch.device
    folder: Path
    model: Path
    corpus: Path  # random token ids, one sequence a line
    exported: Path  # where the pruned model goes
    nbytes: int  # of the checkpoint
    seconds: float  # to write it
    figures: dict[str, Any]  # of the report


def _fitting(shape: Shape, device: torch.device, folder: Path, seconds: float) -> tuple[int, str]:
    """How many layers fit, and what allows no more; writes one to see how fast that is."""
    started = time.monotonic()
    written = write_model(folder / "probe", shape.config(1))
    limits = {
        "memory": free_memory() * _OF_FREE,
        "disk": shutil.disk_usage(folder).free / _COPIES_ON_DISK,
        "time": seconds / _PASSES * written / (time.monotonic() - started),
    }
    shutil.rmtree(folder / "probe")
    if device.type == "cuda":
        limits["GPU memory"] = torch.cuda.mem_get_info(device)[0] * _OF_FREE
    what, most = min(limits.items(), key=lambda limit: limit[1])
    layer = 2 * sum(prod(size) for size in shapes_on_disk(shape.config(1))["0"].values())
    fitting = int(most - written) // layer + 1
    if fitting < 1:
        size = f"{written / 2**30:.1f} GiB with one layer"
        raise UserError(f"{size}, too much for the {what} (--minutes, --folder)")
    return (shape.layers, "") if fitting >= shape.layers else (fitting, what)


def make_world(shape: Shape, device: torch.device, folder: Path, seconds: float) -> World:
    """Write a model that can be checked within these seconds, and its corpus."""
    layers, limit = _fitting(shape, device, folder, seconds)
    corpus, started = folder / "rows.jsonl", time.monotonic()
    nbytes = write_model(folder / "model", shape.config(layers))
    taken = time.monotonic() - started
    lines = (json.dumps({"input_ids": row.tolist()}) + "\n" for row in shape.token_ids())
    corpus.write_text("".join(lines))
    figures = {"layers": f"{layers} of {shape.layers}", "limited by": limit or "nothing"}
    figures |= {"GiB": nbytes / 2**30, "dtype": "bfloat16"}
    places = (folder, folder / "model", corpus, folder / "pruned")
    return World(shape, device, *places, nbytes, taken, figures)
