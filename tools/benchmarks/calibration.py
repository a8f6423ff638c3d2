"""Calibration against plain forwards and an observer that runs every expert on every token."""

import sys

import torch
from synthetic import described, olmoe_config, random_model
from timing import in_turns, report
from torch import nn
from transformers import PreTrainedModel

from analysis.calibration.experts import collecting
from analysis.calibration.sums import GroupSums, sums_of
from analysis.stats.columns import MOMENT_COLUMNS

LAYERS, EXPERTS, TOP_K, HIDDEN, WIDTH = 4, 64, 8, 512, 512
BATCH, LENGTH = 4, 512


class Observer:
    """What research scripts do: a hook on each block that computes all experts on all tokens."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.norm_sum = torch.zeros(LAYERS, EXPERTS, dtype=torch.float64)
        self.gate_norm_sum = torch.zeros(LAYERS, EXPERTS, dtype=torch.float64)
        self.handles = [
            layer.mlp.register_forward_hook(self._hook(index))
            for index, layer in enumerate(model.model.layers)
        ]

    def _hook(self, index: int):
        def hook(block: nn.Module, args: tuple[torch.Tensor], _output: torch.Tensor) -> None:
            hidden = args[0].reshape(-1, HIDDEN)
            _, weights, chosen = block.gate(hidden)
            for expert in range(EXPERTS):
                gate, up = (hidden @ block.experts.gate_up_proj[expert].T).chunk(2, -1)
                output = (nn.functional.silu(gate) * up) @ block.experts.down_proj[expert].T
                norms = output.norm(dim=-1).double()
                selected = chosen == expert
                routed = selected.any(-1)
                gates = (weights * selected).sum(-1).double()
                self.norm_sum[index, expert] += norms[routed].sum()
                self.gate_norm_sum[index, expert] += (gates * norms)[routed].sum()

        return hook

    def close(self) -> None:
        for handle in self.handles:
            handle.remove()


def main() -> None:
    dtype = getattr(torch, sys.argv[1]) if len(sys.argv) > 1 else torch.float32
    model = random_model(olmoe_config(LAYERS, EXPERTS, (HIDDEN, WIDTH))).to(dtype)
    checkpoint = described(model)
    ids = torch.randint(0, 512, (BATCH, LENGTH))

    def forward(implementation: str) -> None:
        model.set_experts_implementation(implementation)
        with torch.no_grad():
            model.model(input_ids=ids, use_cache=False)

    sums = sums_of(checkpoint)

    def calibrate() -> None:
        with collecting(model, checkpoint, sums), torch.no_grad():
            model.model(input_ids=ids, use_cache=False)

    def observe() -> Observer:
        observer = Observer(model)
        forward("eager")
        observer.close()
        return observer

    seconds = in_turns(
        {
            "plain forward, eager": lambda: forward("eager"),
            "plain forward, grouped_mm": lambda: forward("grouped_mm"),
            "calibration, all routed statistics": calibrate,
            "observer, every expert on every token": observe,
        },
        rounds=5,
    )
    title = (
        f"{dtype}, {LAYERS} layers, {EXPERTS} experts top-{TOP_K}, d {HIDDEN}, width {WIDTH}, "
        f"{BATCH * LENGTH} tokens, {torch.get_num_threads()} threads"
    )
    report(title, seconds, "plain forward, eager")
    ours = seconds["calibration, all routed statistics"]
    print(
        f"  against the observer: {seconds['observer, every expert on every token'] / ours:.1f} x"
    )
    print(f"  against grouped_mm: {ours / seconds['plain forward, grouped_mm']:.2f} x")
    sums = sums_of(checkpoint)
    calibrate()
    compare(sums, observe())


def compare(sums: GroupSums, observer: Observer) -> None:
    """The same numbers, relative."""
    column = {name: index for index, name in enumerate(MOMENT_COLUMNS)}
    for name, theirs in (("g0_f1", observer.norm_sum), ("applied_g1_f1", observer.gate_norm_sum)):
        mine = torch.stack(
            [sums.of("moments", layer).sum(0)[:, column[name]] for layer in range(LAYERS)]
        )
        gap = ((mine - theirs).abs() / theirs.abs().clamp(min=1e-12)).max().item()
        print(f"  {name}: largest relative difference to the observer {gap:.1e}")


if __name__ == "__main__":
    main()
