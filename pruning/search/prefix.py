"""A model's trunk run from one of its layers on, with hidden states kept of an earlier run.

The model's own forward runs. Layers before the first that runs pass hidden states through, so
masks, positions and whatever else a layer gets are made by the model itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from analysis.forwards import other_forwards, tensors_in
from pruning.evaluate.full_side import final_hidden
from pruning.evaluate.samples import SampleBatch


@dataclass(frozen=True, slots=True, eq=False)
class Pass:
    """What a run through the trunk leaves."""

    hidden_ND: Tensor  # (scored positions, width) final hidden states
    # Decoder index -> (sequences, length, width) hidden states that the layer got, of each layer
    # that ran.
    inputs: dict[int, Tensor]
    layers: int  # decoder layers that ran
    # Whether each layer got exactly what the one before it gave, and nothing else of the layers
    # before. Only then can a run begin in between.
    is_chain: bool


def run_from(
    model: PreTrainedModel,
    layers: Sequence[nn.Module],
    batch: SampleBatch,
    first: int = 0,
    entry_BTD: Tensor | None = None,
) -> Pass:
    """Run the trunk over a batch, from the layer with decoder index `first` on.

    Bit for bit what the whole trunk gives, if `entry_BTD` is what this layer got in a run with the
    same batch in which all layers before it computed the same; without it, it gets what comes to
    it.
    """
    watch = _Watch(layers, first, entry_BTD)
    forwards = [watch.forward(index) for index in range(len(layers))]
    with other_forwards(layers, forwards):
        hidden_ND = final_hidden(model, batch)
    return Pass(hidden_ND, watch.inputs, len(layers) - first, watch.is_chain)


class _Watch:
    """Stands between the layers of one run, and sees what passes from each to the next."""

    def __init__(self, layers: Sequence[nn.Module], first: int, entry_BTD: Tensor | None) -> None:
        self._originals = [layer.forward for layer in layers]
        self._first = first
        self._entry_BTD = entry_BTD
        self._outputs: list[Any] = []
        self._versions: list[int] = []
        self._was_chained = True
        self.inputs: dict[int, Tensor] = {}

    def forward(self, index: int) -> Any:
        """What takes the place of a layer's forward."""
        if index < self._first:
            return lambda hidden_states, *_, **__: hidden_states

        def run(hidden_states: Tensor, *args: Any, **named: Any) -> Any:
            if index == self._first and self._entry_BTD is not None:
                hidden_states = self._entry_BTD
            self._look(index, hidden_states, (args, named))
            self._outputs.append(self._originals[index](hidden_states, *args, **named))
            return self._outputs[-1]

        return run

    def _look(self, index: int, hidden_BTD: Tensor, others: Any) -> None:
        if index > self._first and not (self._outputs and hidden_BTD is self._outputs[-1]):
            self._was_chained = False
        earlier = {id(output) for output in self._outputs}
        if any(id(value) in earlier for value in tensors_in(others)):
            self._was_chained = False
        self.inputs[index] = hidden_BTD
        self._versions.append(hidden_BTD._version)

    @property
    def is_chain(self) -> bool:
        """See `Pass`; also that no layer wrote into what it got, which is kept."""
        untouched = [tensor._version for tensor in self.inputs.values()] == self._versions
        complete = len(self.inputs) == len(self._originals) - self._first
        return self._was_chained and untouched and complete
