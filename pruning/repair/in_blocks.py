"""A layer of a repair whose experts are loaded in blocks: forwards pause at the experts.

Blocks of experts are loaded twice: all forwards of both models run on each, then those of the
repaired one. What the pruned model gives its experts, it gives them once repaired.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from analysis.calibration.blocks import blocks_of, output_given
from analysis.calibration.hidden import ForwardStates, HiddenStates
from analysis.calibration.skeleton import Skeleton
from analysis.model.forwards import other_forwards
from analysis.model.loaded_block import loaded_block
from pruning.engine.paused import PausedPlans
from pruning.repair.rows import Observer, add_observed

_FIRST = "first"  # name of a forward of one sequence
_SUM = "sum"


@dataclass(frozen=True, slots=True)
class LayerInBlocks:
    """Forwards of original and pruned model, by number of the batch, which pause at experts."""

    layer: int
    skeleton: Skeleton
    experts: nn.Module
    original: PausedPlans
    pruned: PausedPlans

    @property
    def blocks(self) -> Sequence[range]:
        """The experts that are loaded together."""
        return self.original.blocks

    @property
    def share(self) -> float:
        """The part of the work that is one block's."""
        return 1 / len(self.blocks)

    def loaded(self) -> Iterator[range]:
        """Load one block after the other; afterwards none is."""
        for block in self.blocks:
            self.skeleton.load_experts(self.layer, block)
            yield block
        self.skeleton.drop_experts(self.layer)

    def start_first(self, run: Callable[[], object]) -> None:
        """Run the original model on the sequence that finds the factor, as far as the experts."""
        self.original.start(_FIRST, run)

    def add_original(self, number: int) -> None:
        """Run the experts that are loaded on a batch of the original model."""
        self.original.add(str(number), nullcontext())

    def add_first(self) -> None:
        """The same on the sequence that finds the factor."""
        self.original.add(_FIRST, nullcontext())

    def observe(
        self, number: int, candidate: AbstractContextManager[None], observer: Observer
    ) -> None:
        """Run the experts that are loaded on a batch of the pruned model, and tell."""
        given, name = self.pruned.given(str(number)), f"{number}-{_SUM}"
        if loaded_block(self.experts) == self.blocks[0]:
            output_TD = torch.zeros_like(given.hidden_TD)
        else:
            output_TD = self.pruned.states.get(name).to(self.pruned.device)

        def run() -> None:
            add_observed(self.experts, observer, given, output_TD)

        with torch.no_grad(), other_forwards([self.experts], [run]), candidate:
            self.experts.forward()
        self.pruned.states.put(name, output_TD)

    def first_given(self) -> AbstractContextManager[None]:
        """Inside the block the experts give what they gave the sequence that finds the factor."""
        return output_given(self.experts, self.original.output(_FIRST))

    def finish_observed(self, number: int, run: Callable[[], Tensor]) -> Tensor:
        """Run the pruned model on a batch, with what its experts gave."""
        output_TD = self.pruned.states.get(f"{number}-{_SUM}").to(self.pruned.device)
        with output_given(self.experts, output_TD):
            return run()

    def clear(self) -> None:
        """Forget all forwards."""
        self.original.states.clear()
        self.pruned.states.clear()


def layer_in_blocks(
    layer: int,
    skeleton: Skeleton,
    at_once: int,
    states: tuple[HiddenStates, HiddenStates],
) -> LayerInBlocks | None:
    """A layer whose experts are loaded `at_once`; None if that is all of them, or it has none.

    `states`: of the original and of the repaired model.
    """
    experts = skeleton.experts(layer) if at_once else None
    if experts is None or len(blocks := blocks_of(experts, at_once)) < 2:
        return None
    original, pruned = (
        PausedPlans(experts, blocks, ForwardStates(hidden), skeleton.device) for hidden in states
    )
    return LayerInBlocks(layer, skeleton, experts, original, pruned)
