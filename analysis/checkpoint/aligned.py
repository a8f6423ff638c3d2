"""Aligns weights, so that matrix products give the same bits whatever file they come from."""

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

from torch import Tensor, nn

ALIGNMENT = 64  # bytes, like torch's own allocator on the CPU


def align_weights(model: nn.Module) -> None:
    """Copy each weight on the CPU that does not start at a multiple of 64 bytes.

    safetensors maps files, in which tensors start at any multiple of 8. MKL's kernels without AVX,
    also used on AMD processors, multiply one row by a matrix in another order of sums if the matrix
    is not aligned to 16 bytes: two files with the same weights would give different bits.
    """
    for tensor in chain(model.parameters(), model.buffers()):
        if not tensor.is_meta:
            tensor.data = _aligned(tensor.data)
    for module in model.modules():
        # accelerate maps offloaded weights again before each forward of their module.
        hook: Any = getattr(module, "_hf_hook", None)
        if getattr(hook, "weights_map", None) is not None:
            hook.weights_map = _AlignedWeights(hook.weights_map)


class _AlignedWeights(Mapping[str, Tensor]):
    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        self._weights = weights

    def __getitem__(self, name: str) -> Tensor:
        return _aligned(self._weights[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)


def _aligned(tensor: Tensor) -> Tensor:
    is_here = tensor.device.type == "cpu"
    return tensor.clone() if is_here and tensor.data_ptr() % ALIGNMENT else tensor
