"""Hidden states that are kept, from which candidates start that begin like earlier ones."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from analysis.calibration.free import free_memory
from pruning.plan.units import Removed

_SHARE_OF_MEMORY: Final = 0.25


@dataclass(frozen=True, slots=True, eq=False)
class TrunkRun:
    """The results of one run through the trunk."""

    hidden_ND: Tensor  # (scored positions, width) final hidden states
    # Decoder index of each layer that ran -> (sequences, length, width) its input hidden states.
    inputs: dict[int, Tensor]
    layers: int  # decoder layers that ran
    # Whether each layer got exactly the output of the one before, and nothing else of earlier
    # layers. Only then may a run start in between.
    is_chain: bool


class KeptStates:
    """Input hidden states of sparse layers, by candidate and block.

    Candidates that begin alike share tensors. `sparse` are the layers in which two candidates may
    begin to differ. `itemsize` are the bytes of an element where tensors of other processes stand
    for nothing but their shape.
    """

    def __init__(self, sparse: Sequence[int], max_bytes: int, itemsize: int = 0) -> None:
        self._sparse = tuple(sparse)
        self._max_bytes = max_bytes
        self._itemsize = itemsize
        self._is_chain = max_bytes > 0
        # removed -> block -> input of each sparse layer.
        self._inputs: dict[Removed, dict[int, tuple[Tensor, ...]]] = {}

    def entry(self, removed: Removed, block: int) -> tuple[int, Tensor | None]:
        """The first layer that must run, and its input."""
        source = self._source(removed, block)
        if source is None:
            return 0, None
        alike = self._alike(source, removed)
        return self._sparse[alike], self._inputs[source][block][alike]

    def _source(self, removed: Removed, block: int) -> Removed | None:
        """The kept candidate that equals this one in most layers from the first on."""
        others = (other for other, blocks in self._inputs.items() if block in blocks)
        return max(others, key=lambda other: self._alike(other, removed), default=None)

    def keep(self, removed: Removed, block: int, done: TrunkRun) -> None:
        """Keep the inputs of a run, and those that it did not need to recompute."""
        self._is_chain = self._is_chain and done.is_chain
        if not self._is_chain:
            self._inputs.clear()
            return
        source = self._source(removed, block)
        before = self._inputs[source][block] if source else ()
        inputs = tuple(
            done.inputs[index] if index in done.inputs else before[position]
            for position, index in enumerate(self._sparse)
        )
        self._inputs.setdefault(removed, {})[block] = inputs

    def hold(self, candidates: Sequence[Removed]) -> None:
        """Drop all but the last candidate and these, in their order, within the room."""
        last = list(self._inputs)[-1:]
        kept: dict[Removed, dict[int, tuple[Tensor, ...]]] = {}
        sizes: dict[int, int] = {}
        for removed in dict.fromkeys([*last, *candidates]):
            blocks: Mapping[int, tuple[Tensor, ...]] = self._inputs.get(removed, {})
            more = {id(t): self._size(t) for inputs in blocks.values() for t in inputs}
            if blocks and sum((sizes | more).values()) <= self._max_bytes:
                sizes |= more
                kept[removed] = dict(blocks)
        # The last stays last.
        self._inputs = {name: kept[name] for name in reversed(kept)}

    def _size(self, tensor: Tensor) -> int:
        return tensor.numel() * (self._itemsize or tensor.element_size())

    def forget(self) -> None:
        """Drop all."""
        self._inputs.clear()

    def _alike(self, one: Removed, other: Removed) -> int:
        """Number of equal layers from the first on; at most all but the last."""
        limit = len(self._sparse) - 1
        return next((n for n in range(limit) if one[n] != other[n]), max(0, limit))


def free_share(device: torch.device) -> int:
    """Bytes that may be kept for reuse: a quarter of the free memory."""
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else free_memory()
    return int(_SHARE_OF_MEMORY * free)
