"""Masks neurons of a loaded model's experts while the experts run.

A neuron adds a_c * w_c to its expert's output, w_c its column of down. With w_c = 0 it adds exactly
zero, whatever the activation and the biases, so masking down is enough. The masked matrix lives for
one call: no weight changes, and offloaded weights are present only during the call.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from analysis.errors import PlanError
from analysis.model.loaded_block import loaded_block

_DOWN = "down_proj"


def neuron_mask(
    experts: nn.Module, layer: int, neurons: Mapping[int, Sequence[int]], *, is_transposed: bool
) -> torch.Tensor:
    """Booleans that broadcast to the stacked down projection of all experts, True where pruned.

    The weights may be on the meta device. `layer` is the decoder index, for messages; `neurons`
    maps an expert to the neurons that stay, all where it is absent. `is_transposed`: down is
    (experts, width, hidden) instead of (experts, hidden, width).
    """
    count = int(experts.num_experts)  # type: ignore[arg-type]
    width = experts.get_parameter(_DOWN).shape[1 if is_transposed else 2]
    mask = torch.zeros(count, width, dtype=torch.bool)
    for expert, ids in neurons.items():
        if expert >= count or (len(ids) and ids[-1] >= width):
            raise PlanError(
                f"The plan keeps neurons of expert {expert} in layer {layer} that the loaded model "
                f"lacks: it has {count} experts of {width} neurons."
            )
        mask[expert] = True
        mask[expert, list(ids)] = False
    return mask.unsqueeze(2 if is_transposed else 1)


@contextmanager
def neurons_masked(experts: nn.Module, mask: torch.Tensor) -> Iterator[None]:
    """Inside the block, the module's down projection has zeros where `mask` is true."""
    parameters: dict[str, Any] = experts._parameters
    down, block = parameters[_DOWN], loaded_block(experts)
    # masked_fill keeps the graph, so gradients reach the neurons that stay.
    parameters[_DOWN] = down.masked_fill(mask[block.start : block.stop].to(down.device), 0)
    try:
        yield
    finally:
        parameters[_DOWN] = down
