"""MoE blocks of the papers' shapes: plain, with the routed statistics, and with each group.

`OMP_NUM_THREADS=1 python tools/benchmarks/groups.py [olmoe|qwen3] [float32|bfloat16] [tokens]`

Processor time of the block alone, in turns: on a shared machine wall time says little. Random
hidden states spread the tokens evenly over the experts.
"""

import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from timing import in_turns, report
from transformers import (
    OlmoeConfig,
    OlmoeForCausalLM,
    PreTrainedModel,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from analysis.calibration.experts import collecting
from analysis.calibration.sums import sums_of
from analysis.checkpoint import open_checkpoint
from analysis.model import describe_model

HIDDEN, TOP_K = 2048, 8


def build(shape: str) -> PreTrainedModel:
    """One layer of OLMoE-1B-7B or of Qwen3-30B-A3B, with a tiny vocabulary."""
    torch.manual_seed(0)
    common = {
        "vocab_size": 64,
        "hidden_size": HIDDEN,
        "num_hidden_layers": 1,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "num_experts_per_tok": TOP_K,
        "eos_token_id": None,
        "pad_token_id": None,
        "bos_token_id": None,
    }
    if shape == "olmoe":
        config = OlmoeConfig(num_experts=64, intermediate_size=1024, **common)
        return OlmoeForCausalLM(config).eval().requires_grad_(False)
    own = {"num_experts": 128, "moe_intermediate_size": 768, "norm_topk_prob": True}
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**own, **common)).eval().requires_grad_(False)


def main() -> None:
    shape, name, tokens = [*sys.argv[1:], *("olmoe", "float32", "2048")[len(sys.argv) - 1 :]]
    dtype = getattr(torch, name)
    model = build(shape).to(dtype)
    with TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        described = describe_model(open_checkpoint(Path(folder)))
    block = model.get_submodule("model.layers.0.mlp")
    hidden = torch.randn(1, int(tokens), HIDDEN, dtype=dtype)

    def plain(implementation: str) -> None:
        model.set_experts_implementation(implementation)
        with torch.no_grad():
            block(hidden)

    def collect(*groups: str) -> None:
        with collecting(model, described, sums_of(described, groups)), torch.no_grad():
            block(hidden)

    actions = {
        "plain, eager": lambda: plain("eager"),
        "routed": collect,
        "routed, router": lambda: collect("router"),
        "routed, damage": lambda: collect("damage"),
    }
    seconds = in_turns(actions, rounds=5, clock=time.process_time)
    report(f"{shape}, {dtype}, {tokens} tokens", seconds, "plain, eager")
    print(f"  damage may take {(TOP_K + 1) / TOP_K * 1.15:.2f} x where the order is kept")


if __name__ == "__main__":
    main()
