"""Runs the experts of a layer in blocks, for layers larger than memory.

Each forward of the layer stops at its experts, whose input is kept. Blocks of experts are loaded
one after the other and run on what all forwards kept, so each weight is read once. Then the
forwards run again, with the experts' output in place of the experts: what precedes experts in a
layer is computed twice. Shape suffixes as in `experts`.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from analysis.calibration.free import free_memory
from analysis.calibration.loading import DTYPES, CalibrationSettings, resolve_device, resolve_dtype
from analysis.errors import CheckpointError, UnsupportedModelError
from analysis.model.forwards import other_forwards
from analysis.model.moe_model import MoEModel
from analysis.model.parts import layer_weights

# Estimates of memory are too low by as much.
_SHARE_OF_FREE = 0.8
# transformers dequantises tensors one by one before it stacks them: FP8 experts took 1.67 to 1.70
# times their size while they were loaded, MXFP4, with an index for each element, 3.4 to 3.6 times;
# whole layers and blocks alike.
_TIMES_DEQUANTISED = {"fp8": 1.7, "mxfp4": 3.6}


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


def blocks_note(at_once: int) -> str:
    """Tells that experts run in blocks of so many."""
    return f"a layer does not fit whole: {at_once} of its experts at once"


def blocks_of(experts: nn.Module, at_once: int) -> list[range]:
    """The experts of a layer in blocks of so many; 0 means all."""
    count = int(experts.num_experts)  # type: ignore[arg-type]
    size = at_once or count
    return [range(start, min(start + size, count)) for start in range(0, count, size)]


def layers_in_blocks(model: MoEModel, at_once: int) -> list[int]:
    """Layers whose experts run in blocks of so many; 0 means none."""
    return [layer.index for layer in model.layers if 0 < at_once < layer.num_experts]


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
    weights = layer_weights(model, heads="heads" in settings.groups)
    item = DTYPES[resolve_dtype(settings.dtype, model)].itemsize
    times = _TIMES_DEQUANTISED.get(model.quantisation, 1.0)
    around, expert = weights.largest_around * item, weights.expert * item * times
    return LayerSizes(int(weights.largest(times) * item), around, int(expert))


def memory_of(device: torch.device) -> int:
    """Bytes that this process may still take on a device."""
    if device.type != "cuda":
        return free_memory()
    # torch keeps what was freed, and gives it out again.
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(torch.cuda.mem_get_info(device)[0]) + kept


@dataclass(frozen=True, slots=True)
class FreeMemory:
    """Bytes that a run may take."""

    device: int  # for weights and activations
    host: int | None = None  # for hidden states; None: the device has them too

    def holds(self, on_device: int, states: int, share: float = 1.0) -> bool:
        """Whether a share of it is enough."""
        if self.host is None:
            return on_device + states <= share * self.device
        return on_device <= share * self.device and states <= share * self.host


def free_for(settings: CalibrationSettings) -> FreeMemory:
    """What a run with these settings may take."""
    device = resolve_device(settings.device)
    host = None if device.type == "cpu" else free_memory()
    return FreeMemory(memory_of(device), host)


@dataclass(frozen=True, slots=True)
class RunSizes:
    """Bytes that a run takes in addition to the weights of a layer."""

    running: int  # sums and activations, on the device
    states: int  # hidden states, in the memory of the CPU; 0 if on disk
    paused: int  # the same where experts run in blocks, with what these get and give
    kept: int = 0  # on the device, of forwards that pause at experts
    copies: float = 0  # of the experts that are loaded, as of plans that change weights
    whole: int = 0  # on the device, where a layer is loaded whole and nothing is copied


def largest_block(sizes: LayerSizes, count: int, run: RunSizes, free: FreeMemory) -> int:
    """How many of a layer's `count` experts to load at once; 0 means all."""
    more = max(int(count * sizes.expert * run.copies), run.whole)
    if free.holds(sizes.whole + more + run.running, run.states, _SHARE_OF_FREE):
        return 0
    others = sizes.around + run.running + run.kept + (run.paused if free.host is None else 0)
    room = free.device * _SHARE_OF_FREE - others
    fitting = int(room // max(1, sizes.expert * (1 + run.copies)))
    return min(max(1, fitting), count - 1)


def experts_that_fit(model: MoEModel, settings: CalibrationSettings, run: RunSizes) -> int:
    """How many experts of a layer to load at once: as asked, else what fits; 0 means all."""
    most = max(layer.num_experts for layer in model.layers)
    if asked := settings.placement.experts_at_once:
        return asked if asked < most else 0
    return largest_block(layer_sizes(model, settings), most, run, free_for(settings))


def block_bytes(sizes: LayerSizes, at_once: int, run: RunSizes) -> int:
    """What a run takes on the device with so many experts of a layer."""
    copies = int(at_once * sizes.expert * run.copies)
    return sizes.with_experts(at_once) + copies + run.running + run.kept


def check_block(
    model: MoEModel, settings: CalibrationSettings, run: RunSizes, at_once: int
) -> None:
    """Refuse blocks that do not fit; 0 means no blocks."""
    free = free_for(settings)
    needed = block_bytes(layer_sizes(model, settings), at_once, run)
    if not at_once or free.holds(needed, run.paused):
        return
    taken, there = needed + run.paused, free.device
    if free.host is not None:
        on_device = needed > free.device
        taken, there = (needed, free.device) if on_device else (run.paused, free.host)
    sizes = " GiB, but ".join(f"{size / 2**30:.2f}" for size in (taken, there))
    raise CheckpointError(
        f"{model.name} does not fit into memory, not even with {at_once} of a layer's experts at "
        f"once: it needs about {sizes} GiB is free. Try fewer tokens, a smaller --batch-size, "
        "--hidden-states-dir, or fewer --experts-at-once."
    )
