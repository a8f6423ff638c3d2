"""Runs the experts of a layer in blocks, for layers larger than memory.

Each forward of the layer stops at its experts, whose input is kept. Blocks of experts are loaded
one after the other and run on what all forwards kept, so each weight is read once. Then the
forwards run again, with the experts' output in place of the experts: what precedes experts in a
layer is computed twice. Shape suffixes as in `experts`.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from analysis.calibration.free import free_memory
from analysis.calibration.loading import DTYPES, CalibrationSettings, resolve_device, resolve_dtype
from analysis.errors import UnsupportedModelError
from analysis.families.base import SlotKind
from analysis.model.forwards import other_forwards
from analysis.model.heads import prediction_heads
from analysis.model.moe_model import MoEModel
from analysis.model.parts import part_of

# Estimates of memory are too low by as much.
_SHARE_OF_FREE = 0.8
# transformers dequantises the tensors of a block one by one before it stacks them.
_TIMES_DEQUANTISED = 3


@dataclass(frozen=True, slots=True, eq=False)
class ExpertsInput:
    """What the experts of a layer get in one forward."""

    hidden_TD: Tensor
    index_TK: Tensor
    weights_TK: Tensor


class _Stopped(Exception):
    """Carries the input of experts out of a forward."""

    def __init__(self, given: ExpertsInput) -> None:
        super().__init__()
        self.given = given


def input_of(experts: nn.Module, run: Callable[[], object]) -> ExpertsInput:
    """What a forward gives these experts; it stops there."""

    def stop(hidden_TD: Tensor, index_TK: Tensor, weights_TK: Tensor) -> Tensor:
        raise _Stopped(ExpertsInput(hidden_TD, index_TK, weights_TK))

    try:
        with other_forwards([experts], [stop]):
            run()
    except _Stopped as stopped:
        return stopped.given
    raise UnsupportedModelError(
        f"{type(experts).__name__} does not run in its layer, so the experts cannot be loaded in "
        "blocks; leave out --experts-at-once."
    )


@contextmanager
def output_given(experts: nn.Module, output_TD: Tensor) -> Iterator[None]:
    """Inside the block the experts do not run, and give this output."""
    with other_forwards([experts], [lambda *_: output_TD]):
        yield


def blocks_of(experts: nn.Module, at_once: int) -> list[range]:
    """The experts of a layer in blocks of so many; 0 means all."""
    count = int(experts.num_experts)  # type: ignore[arg-type]
    size = at_once or count
    return [range(start, min(start + size, count)) for start in range(0, count, size)]


@dataclass(frozen=True, slots=True)
class LayerSizes:
    """Bytes of the largest layer while it computes."""

    whole: int
    around: int  # without its experts, or of what has none
    expert: int

    def with_experts(self, count: int) -> int:
        """With so many of its experts."""
        return self.around + count * self.expert


def layer_sizes(model: MoEModel, settings: CalibrationSettings) -> LayerSizes:
    """Sizes of what is in memory at once: a layer, or a tensor outside of the layers."""
    in_heads = {name for head in prediction_heads(model) for name in head.tensors}
    counts = {layer.index: layer.num_experts for layer in model.layers}
    around, routed = Counter[str](), Counter[int]()
    for name, entry in model.checkpoint.tensors.items():
        slot = model.slots.get(name)
        if name in in_heads:
            if "heads" in settings.groups:  # which are loaded whole
                around[part_of(name)] += model.num_weights(entry)
        elif slot is None or slot.kind is SlotKind.ROUTER:
            around[part_of(name)] += model.num_weights(entry)
        elif slot.layer in counts:
            routed[slot.layer] += model.num_weights(entry)
    item = DTYPES[resolve_dtype(settings.dtype, model)].itemsize
    expert = max(weights // counts[layer] for layer, weights in routed.items()) * item
    whole = max(weights + around[str(layer)] for layer, weights in routed.items()) * item
    most = max(around.values()) * item
    times = _TIMES_DEQUANTISED if model.quantisation else 1
    return LayerSizes(max(whole, most), most, expert * times)


def memory_of(device: torch.device) -> int:
    """Bytes that this process may still take on a device."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else free_memory()


@dataclass(frozen=True, slots=True)
class Besides:
    """Bytes that a run needs beside the weights of a layer."""

    whole: int
    in_blocks: int
    copies: int = 0  # of the experts that are loaded, as of plans that change weights


def experts_that_fit(model: MoEModel, settings: CalibrationSettings, besides: Besides) -> int:
    """How many experts of a layer to load at once: as asked, else what fits; 0 means all."""
    most = max(layer.num_experts for layer in model.layers)
    asked = settings.placement.experts_at_once
    if asked:
        return asked if asked < most else 0
    sizes = layer_sizes(model, settings)
    room = int(memory_of(resolve_device(settings.device)) * _SHARE_OF_FREE)
    if sizes.whole + most * sizes.expert * besides.copies + besides.whole <= room:
        return 0
    held = sizes.expert * (1 + besides.copies)
    fitting = (room - besides.in_blocks - sizes.around) // max(1, held)
    return min(max(1, fitting), most - 1)
