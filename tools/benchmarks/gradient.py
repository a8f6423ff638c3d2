"""Statistics of neurons: one forward and one backward, against plain forwards of the same model.

`OMP_NUM_THREADS=1 python tools/benchmarks/gradient.py [float32|bfloat16]`

Processor time: on a shared machine wall time says little.
"""

import sys
import time

import numpy as np
import torch
from synthetic import described, olmoe_config, random_model
from timing import in_turns, report

from analysis.calibration.experts import collecting
from analysis.calibration.feed import checkpointed, feed, feed_backward
from analysis.calibration.sums import sums_of
from analysis.corpora.sequences import TokenSequences

LAYERS, EXPERTS, TOP_K, HIDDEN, WIDTH, VOCABULARY = 4, 64, 8, 512, 512, 8192
BATCH, LENGTH = 4, 512


def main() -> None:
    name = sys.argv[1] if len(sys.argv) > 1 else "float32"
    config = olmoe_config(LAYERS, EXPERTS, (HIDDEN, WIDTH), vocab_size=VOCABULARY)
    model = random_model(config).to(getattr(torch, name))
    checkpoint = described(model)
    rng = np.random.default_rng(0)
    rows = tuple(rng.integers(0, VOCABULARY, LENGTH).astype(np.int32) for _ in range(BATCH))
    batch = next(TokenSequences("random", rows, BATCH, 0).batches(BATCH))
    ids = torch.from_numpy(batch.input_ids)

    def forward(implementation: str, *, head: bool) -> None:
        model.set_experts_implementation(implementation)
        with torch.no_grad():
            (model if head else model.model)(input_ids=ids, use_cache=False)

    def collect(*groups: str) -> None:
        with collecting(model, checkpoint, sums_of(checkpoint, groups)), torch.no_grad():
            (feed_backward if "gradient" in groups else feed)(model, batch)

    def recompute() -> None:
        with checkpointed(model, checkpoint.family):
            collect("gradient")

    actions = {
        "forward, eager": lambda: forward("eager", head=True),
        "forward, eager, without the head": lambda: forward("eager", head=False),
        "forward, grouped_mm": lambda: forward("grouped_mm", head=True),
        "routed": lambda: collect(),
        "routed, gradient": lambda: collect("gradient"),
        "the same, activations computed again": recompute,
    }
    title = (
        f"{name}, {LAYERS} layers, {EXPERTS} experts top-{TOP_K}, d {HIDDEN}, width {WIDTH}, "
        f"vocabulary {VOCABULARY}, {ids.numel()} tokens, {torch.get_num_threads()} threads"
    )
    report(title, in_turns(actions, rounds=5, clock=time.process_time), "forward, eager")


if __name__ == "__main__":
    main()
