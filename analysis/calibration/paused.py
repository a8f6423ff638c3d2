"""Forwards of a layer that pause at its experts, whose weights are loaded in blocks."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from analysis.calibration.blocks import input_of, output_given
from analysis.calibration.experts import ExpertsLoop, not_collecting, paused_loop
from analysis.calibration.hidden import ForwardStates


@dataclass(frozen=True, slots=True)
class PausedForwards:
    """Forwards of a layer while collecting, by number from 0, all at the same expert."""

    experts: nn.Module
    states: ForwardStates  # input and output of the experts, which go where hidden states go
    device: torch.device
    _loops: list[ExpertsLoop] = field(default_factory=list)

    def start(self, run: Callable[[], object]) -> None:
        """Run the next forward as far as its experts."""
        number, given = len(self._loops), input_of(self.experts, run)
        self._loops.append(paused_loop(self.experts, given.index_TK, given.weights_TK))
        self.states.put(f"{number}-input", given.hidden_TD)
        self.states.put(f"{number}-output", torch.zeros_like(given.hidden_TD))

    @property
    def num_passes(self) -> int:
        """How often the experts are read: the group `dense` needs the output of all of them."""
        return 1 + self._loops[0].is_dense

    def add(self, number: int, at_pass: int) -> None:
        """Run the experts whose weights are in place."""
        hidden_TD, output_TD = self._get(number, "input"), self._get(number, "output")
        if at_pass:
            self._loops[number].add_dense(hidden_TD, output_TD)
            return
        self._loops[number].add(hidden_TD, output_TD)
        self.states.put(f"{number}-output", output_TD)

    def close(self, number: int) -> None:
        """All experts ran."""
        self._loops[number].close(self._get(number, "input"))

    def finish(self, number: int, run: Callable[[], Tensor]) -> Tensor:
        """Run a forward again, with what the experts gave; it adds nothing to the sums."""
        with not_collecting(), output_given(self.experts, self._get(number, "output")):
            return run()

    def _get(self, number: int, name: str) -> Tensor:
        return self.states.get(f"{number}-{name}").to(self.device)
