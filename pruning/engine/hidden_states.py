"""Variance of hidden states after each layer, full against pruned (arXiv:2603.18492, Fig. 6)."""

from collections.abc import Generator, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from analysis.families.base import MoEFamily
from analysis.model.forwards import Forward, Wrapper, decoder_layers, wrap_forward
from analysis.numbers.arrays import FloatArray
from analysis.progress import Progress
from pruning.engine.candidate import candidate_of
from pruning.engine.full_side import final_hidden
from pruning.measures.samples import Samples
from pruning.plan.plan import PruningPlan

NUM_TOKENS = 4096
VARYING = "hidden states"  # phase


def sample_tokens(
    samples: Samples, count: int = NUM_TOKENS, seed: int = 42
) -> list[NDArray[np.bool_]]:
    """(samples, length) per batch: True at `count` tokens drawn without replacement, or at all.

    Any token but padding may be drawn, whether or not it counts.
    """
    masks = [batch.tokens.mask for batch in samples.batches()]
    total = sum(int(mask.sum()) for mask in masks)
    flags = np.zeros(total, dtype=np.bool_)
    flags[np.random.default_rng(seed).permutation(total)[:count]] = True
    chosen, first = [], 0
    for mask in masks:
        here = np.zeros_like(mask)
        here[mask] = flags[first : first + int(mask.sum())]
        first += int(mask.sum())
        chosen.append(here)
    return chosen


def run_variance(
    model: PreTrainedModel,
    family: MoEFamily,
    plan: PruningPlan | None,
    samples: Samples,
    chosen: Sequence[NDArray[np.bool_]],
) -> Generator[Progress, None, FloatArray]:
    """(decoder layers,) population variance over features, mean over the `chosen` tokens, float64.

    Of the output of each decoder layer. For `chosen` see `sample_tokens`. The mask of the plan is
    removed afterwards.
    """
    layers = decoder_layers(model, family)
    sums = np.zeros(len(layers))
    chosen_BT = torch.zeros(0, dtype=torch.bool)  # of the current batch

    def summing(number: int) -> Wrapper:
        def around(inner: Forward) -> Forward:
            def forward(*args: Any, **kwargs: Any) -> Any:
                output = inner(*args, **kwargs)
                hidden_BTD: Tensor = output[0] if isinstance(output, tuple) else output
                # All residual streams, where there are several.
                tokens_ND = hidden_BTD[chosen_BT.to(hidden_BTD.device)].flatten(1).double()
                sums[number] += float(tokens_ND.var(dim=-1, correction=0).sum())
                return output

            return forward

        return around

    with ExitStack() as restore:
        for number, layer in enumerate(layers):
            wrap_forward(layer, summing(number), restore)
        for batch in samples.batches():
            yield Progress(VARYING, batch.samples.start, len(samples), "samples")
            chosen_BT = torch.from_numpy(chosen[batch.number])
            with candidate_of(model, family, plan):
                final_hidden(model, batch)
    yield Progress(VARYING, len(samples), len(samples), "samples")
    return sums / sum(int(mask.sum()) for mask in chosen)
