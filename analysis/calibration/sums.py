"""The sums of a calibration: named tensors that add up over batches, shards and processes."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from analysis.corpora import TOKEN_SHARDS
from analysis.families import MoELayer
from analysis.groups import Group, ordered
from analysis.model import MoEModel
from analysis.stats import MOMENT_COLUMNS

_Shape = tuple[tuple[int, ...], torch.dtype]


def _shapes(layer: MoELayer, output_size: int, groups: Sequence[Group]) -> dict[str, _Shape]:
    """What a layer keeps: name -> shape and element type."""
    count = layer.num_experts
    shapes: dict[Group, dict[str, _Shape]] = {
        "routed": {
            "moments": ((TOKEN_SHARDS, count, len(MOMENT_COLUMNS)), torch.float64),
            "vectors": ((count, output_size), torch.float64),
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
    }
    return {name: shape for group in groups for name, shape in shapes[group].items()}


class GroupSums:
    """Sums of the chosen groups, by name and layer; float64 and int64, all of them additive.

    They start on the CPU. A layer's sums move to the device of its experts when it first runs.

    Args:
        layers: the sparse layers.
        output_size: width of an expert's output.
        groups: what to collect; `routed` always.
    """

    def __init__(
        self, layers: Sequence[MoELayer], output_size: int, groups: Sequence[str] = ()
    ) -> None:
        self.groups = ordered(groups)
        self._tensors: dict[tuple[str, int], Tensor] = {
            (name, layer.index): torch.zeros(shape, dtype=dtype)
            for layer in layers
            for name, (shape, dtype) in _shapes(layer, output_size, self.groups).items()
        }

    def of(self, name: str, layer: int, device: torch.device | None = None) -> Tensor:
        """The sum of this name, to be added to in place; on `device` from now on if given."""
        tensor = self._tensors[name, layer]
        if device is not None and tensor.device != device:
            tensor = self._tensors[name, layer] = tensor.to(device)
        return tensor

    def tensors(self) -> dict[str, Tensor]:
        """All sums as `name.layer`, on the CPU; what a resume and other processes need."""
        return {f"{name}.{layer}": value.cpu() for (name, layer), value in self._tensors.items()}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Inverse of `tensors`; what else is there, as in states of older versions, is left."""
        for name, layer in self._tensors:
            self._tensors[name, layer] = tensors[f"{name}.{layer}"]


def sums_of(model: MoEModel, groups: Sequence[str] = ()) -> GroupSums:
    """Sums of nothing, for a described model."""
    return GroupSums(model.layers, model.expert_output_size, groups)
