"""The sums of a calibration: named tensors that add up over batches and shards.

Two of them, `peaks` and `largest`, hold maxima instead.
"""

import math
import sys
from collections.abc import Container, Mapping, Sequence
from copy import copy
from itertools import pairwise
from types import MappingProxyType

import torch
from torch import Tensor

from analysis.calibration.free import lacks_memory
from analysis.corpora.sequences import TOKEN_SHARDS
from analysis.errors import CheckpointError
from analysis.families.base import MoELayer
from analysis.model.heads import head_experts
from analysis.model.moe_model import MoEModel
from analysis.model.widths import computed_widths
from analysis.stats.columns import MOMENT_COLUMNS, Group, ordered

_Shape = tuple[tuple[int, ...], torch.dtype]
# Layer -> neurons of each of its experts.
Widths = Mapping[int, Sequence[int]]
# Part of torch's message if a CPU has no memory left; there is no error type for it.
_CHOSEN = "chosen."


def _shapes(
    layer: MoELayer, output_size: int, groups: Sequence[Group], width: int, num_samples: int
) -> dict[str, _Shape]:
    """The sums of a layer: name -> shape and dtype."""
    count = layer.num_experts
    neurons = ((count, width), torch.float64)
    of_samples = ((num_samples, count), torch.float64)
    shapes: dict[Group, dict[str, _Shape]] = {
        "routed": {
            "moments": ((TOKEN_SHARDS, count, len(MOMENT_COLUMNS)), torch.float64),
            "vectors": ((count, output_size), torch.float64),
            "largest": ((count,), torch.float64),
        },
        "router": {
            "probabilities": ((count,), torch.float64),
            "entropy": ((1,), torch.float64),
            "tokens": ((1,), torch.int64),
            "coactivation": ((count, count), torch.int64),
        },
        "damage": {
            "damage": ((TOKEN_SHARDS, count), torch.float64),
            "extra": ((1,), torch.int64),
            "counted": ((1,), torch.int64),
        },
        "gradient": {"outputs": neurons, "slopes": neurons, "peaks": neurons},
        "dense": {
            "dense_activation": of_samples,
            "dense_probability": of_samples,
            "dense_loss": of_samples,
            "dense_tokens": ((num_samples,), torch.int64),
        },
        "heads": {},  # their layers have the sums of `routed`
    }
    return {name: shape for group in groups for name, shape in shapes[group].items()}


def _zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Zeros, or a MemoryError; for impossible sizes torch raises several other types."""
    if math.prod(shape) * dtype.itemsize > sys.maxsize:
        raise MemoryError(f"{list(shape)} of {dtype}")
    try:
        return torch.zeros(shape, dtype=dtype)
    except RuntimeError as error:
        if not lacks_memory(error):
            raise
        raise MemoryError(f"{list(shape)} of {dtype}") from error


class GroupSums:
    """Sums of the chosen groups, by name and layer; float64 and int64.

    They start on the CPU; a layer's sums move to the device of its experts when it first runs.
    `chosen` is not a sum: by the first sample of a batch, (tokens, K) experts that its tokens chose
    in the last layer they passed. It is part of `tensors` because a streamed run may stop between
    two layers; otherwise it is empty between batches.

    The group `gradient` needs `widths`, `dense` needs `num_samples` (all sequences). Raises a
    MemoryError if the sums do not fit.
    """

    def __init__(
        self,
        layers: Sequence[MoELayer],
        output_size: int,
        groups: Sequence[str] = (),
        widths: Widths = MappingProxyType({}),
        num_samples: int = 0,
    ) -> None:
        self.groups = ordered(groups)
        self.widths = widths
        self.chosen: dict[int, Tensor] = {}
        self.order = tuple(layer.index for layer in layers)
        self.heads: tuple[int, ...] = ()  # layers of prediction heads
        self._tensors: dict[tuple[str, int], Tensor] = {
            (name, layer.index): _zeros(shape, dtype)
            for layer in layers
            for name, (shape, dtype) in _shapes(
                layer, output_size, self.groups, max(widths.get(layer.index, (0,))), num_samples
            ).items()
        }
        if "dense" in self.groups:
            for before, layer in pairwise(layers):
                square = (before.num_experts, layer.num_experts)
                self._tensors["transitions", layer.index] = _zeros(square, torch.int64)

    def of(self, name: str, layer: int, device: torch.device | None = None) -> Tensor:
        """The sum of this name, to add to in place; moved to `device` if given."""
        tensor = self._tensors[name, layer]
        if device is not None and tensor.device != device:
            tensor = self._tensors[name, layer] = tensor.to(device)
        return tensor

    def add_heads(self, layers: Sequence[MoELayer], output_size: int) -> None:
        """Add the sums of `routed` for layers of prediction heads."""
        self.heads = tuple(layer.index for layer in layers)
        for layer in layers:
            for name, (shape, dtype) in _shapes(layer, output_size, ("routed",), 0, 0).items():
                self._tensors[name, layer.index] = _zeros(shape, dtype)

    @property
    def nbytes(self) -> int:
        """Bytes of all sums."""
        return sum(tensor.nbytes for tensor in self._tensors.values())

    def of_routed(self) -> "GroupSums":
        """The same sums, for layers of which only the group `routed` is collected."""
        view = copy(self)
        view.groups = ("routed",)
        return view

    def tensors(self) -> dict[str, Tensor]:
        """All sums as `name.layer`, on the CPU, for saving and for other processes."""
        sums = {f"{name}.{layer}": value.cpu() for (name, layer), value in self._tensors.items()}
        return sums | {f"{_CHOSEN}{batch}": ids for batch, ids in self.chosen.items()}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Inverse of `tensors`."""
        self._tensors.clear()
        self.chosen.clear()
        for key, tensor in tensors.items():
            name, _, number = key.partition(".")
            if key.startswith(_CHOSEN):
                self.chosen[int(number)] = tensor
            else:
                self._tensors[name, int(number)] = tensor

    def hold(self, layers: Container[int]) -> None:
        """Drop the sums of all layers but these."""
        for key in [key for key in self._tensors if key[1] not in layers]:
            del self._tensors[key]


def sums_of(model: MoEModel, groups: Sequence[str] = (), num_samples: int = 0) -> GroupSums:
    """Zeroed sums for a described model and a number of sequences."""
    widths = computed_widths(model) if "gradient" in groups else {}
    size = model.expert_output_size
    try:
        sums = GroupSums(model.layers, size, groups, widths, num_samples)
        if "heads" in groups:
            sums.add_heads([layer for _, _, layer in head_experts(model)], size)
    except MemoryError as error:
        raise CheckpointError(
            f"The statistics of {model.name} do not fit into memory: {len(model.layers)} layers "
            f"whose experts output vectors of {size} numbers; is its config.json correct?"
        ) from error
    return sums
