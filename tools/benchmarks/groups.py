"""MoE blocks of the papers' shapes: plain, with the routed statistics, and with each group.

`OMP_NUM_THREADS=1 python tools/benchmarks/groups.py [olmoe|qwen3] [float32|bfloat16] [tokens]`

Processor time of the block alone, in turns: on a shared machine wall time says little. Random
hidden states spread the tokens evenly over the experts.
"""

import sys
import time

import torch
from synthetic import described, olmoe_config, random_model
from timing import in_turns, report
from transformers import PreTrainedConfig, Qwen3MoeConfig

from analysis.calibration.experts import collecting
from analysis.calibration.sums import sums_of

HIDDEN, TOP_K = 2048, 8


def config_of(shape: str) -> PreTrainedConfig:
    """One layer of OLMoE-1B-7B or of Qwen3-30B-A3B, with a tiny vocabulary."""
    heads = {"num_attention_heads": 16, "num_key_value_heads": 16, "vocab_size": 64}
    olmoe = olmoe_config(1, 64, (HIDDEN, 1024), **heads)
    if shape == "olmoe":
        return olmoe
    values = {key: olmoe.to_dict()[key] for key in ("hidden_size", "num_hidden_layers", *heads)}
    values |= dict.fromkeys(("eos_token_id", "pad_token_id", "bos_token_id"))
    values |= {"num_experts": 128, "moe_intermediate_size": 768, "norm_topk_prob": True}
    return Qwen3MoeConfig(**values, num_experts_per_tok=TOP_K)


def main() -> None:
    shape, name, tokens = [*sys.argv[1:], *("olmoe", "float32", "2048")[len(sys.argv) - 1 :]]
    dtype = getattr(torch, name)
    model = random_model(config_of(shape)).to(dtype)
    checkpoint = described(model)
    block = model.get_submodule("model.layers.0.mlp")
    hidden = torch.randn(1, int(tokens), HIDDEN, dtype=dtype)

    def plain(implementation: str) -> None:
        model.set_experts_implementation(implementation)
        with torch.no_grad():
            block(hidden)

    def collect(*groups: str) -> None:
        with collecting(model, checkpoint, sums_of(checkpoint, groups)), torch.no_grad():
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
