"""Runs one decoder layer of a model at a time, or some of them, by the model's own forward.

Earlier layers pass the hidden states through, later ones are not reached. So the model itself makes
masks, positions and other inputs of the layer.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from analysis.calibration.feed import feed
from analysis.corpora.early import NOT_STREAMED, SPREAD_INSTEAD
from analysis.corpora.sequences import TokenBatch
from analysis.errors import UnsupportedModelError
from analysis.families.rules import HANDS_ON_MORE
from analysis.model.forwards import Forward, other_forwards, tensors_in


class _Alone(Tensor):
    """Hidden states of a layer that hands on nothing else, so that no model takes them apart."""

    def __iter__(self) -> Iterator[Tensor]:
        raise _TakenApart


class _TakenApart(Exception):
    """The model expects several values of a layer."""


class _HiddenStates(Exception):
    """Carries hidden states out of a forward."""

    def __init__(self, hidden_BTD: Tensor) -> None:
        super().__init__()
        self.hidden_BTD = hidden_BTD


@dataclass(frozen=True, slots=True)
class Relay:
    """Runs layers of a model on given hidden states, or the embeddings alone."""

    model: PreTrainedModel  # only what runs must be loaded
    layers: nn.ModuleList  # its decoder layers
    label: str  # of the family, for messages
    feed: Callable[[PreTrainedModel, TokenBatch], object] = feed  # runs the trunk on a batch
    # What cannot be done with a model whose layers do not run alone, and what can.
    refused: str = NOT_STREAMED
    instead: str = SPREAD_INSTEAD
    inseparable: str = ""  # see `MoEModel`; what nobody recorded shows when layers run

    def __post_init__(self) -> None:
        if self.inseparable:
            raise self.refusal(self.inseparable)

    def embed(self, batch: TokenBatch) -> Tensor:
        """Hidden states (sequences, length, width) that the first layer gets."""
        inputs: list[Tensor] = []

        def check(position: int, hidden_BTD: Tensor, others: Any) -> Tensor:
            if not position:
                inputs.append(hidden_BTD)
                hidden_BTD = hidden_BTD.as_subclass(_Alone)
            elif hidden_BTD is not inputs[-1]:
                raise self.refusal("the model changes hidden states between its layers")
            for value in tensors_in(others):
                if value is hidden_BTD or value.shape == hidden_BTD.shape:
                    raise self.refusal("a layer gets hidden states of another one")
            inputs.append(hidden_BTD)
            if position == len(self.layers) - 1:
                raise _HiddenStates(inputs[0])
            return hidden_BTD

        forwards = [
            lambda hidden, *args, _at=at, **kwargs: check(_at, hidden, (args, kwargs))
            for at in range(len(self.layers))
        ]
        with other_forwards(*self._modules_without_weights()):
            return self._run(batch, forwards)

    def _modules_without_weights(self) -> tuple[list[nn.Module], list[Forward]]:
        """Modules outside of the layers without weights, and forwards that refuse to run them."""
        inside = {id(module) for module in self.layers.modules()}
        modules = [
            (name, module)
            for name, module in self.model.named_modules()
            if id(module) not in inside and any(p.is_meta for p in module.parameters(recurse=False))
        ]
        return [module for _, module in modules], [
            self._refuse_to_run(name.rpartition(".")[2]) for name, _ in modules
        ]

    def _refuse_to_run(self, name: str) -> Forward:
        def refuse(*_: Any, **__: Any) -> Tensor:
            raise self.refusal(f"each layer also gets what {name} makes of the tokens")

        return refuse

    def layer(self, number: int, batch: TokenBatch, hidden_BTD: Tensor) -> Tensor:
        """The layer's output for these hidden states."""
        return self.span(range(number, number + 1), batch, hidden_BTD)

    def span(self, numbers: range, batch: TokenBatch, hidden_BTD: Tensor) -> Tensor:
        """What the last of several layers gives, for the hidden states that the first one gets."""

        def through(hidden: Tensor, *_: Any, **__: Any) -> Tensor:
            return hidden.as_subclass(_Alone)

        def enter(_: Tensor, *args: Any, **kwargs: Any) -> Any:
            return first(hidden_BTD, *args, **kwargs)

        def leave(*args: Any, **kwargs: Any) -> Tensor:
            output = run[-1](*args, **kwargs)
            raise _HiddenStates(output if isinstance(output, Tensor) else output[0])

        first, *later = (self.layers[number].forward for number in numbers)
        run: list[Forward] = [enter, *later]
        embeddings = self.model.get_input_embeddings()
        with other_forwards([embeddings], [lambda *_, **__: _first_stream(hidden_BTD)]):
            return self._run(batch, [through] * numbers[0] + run[:-1] + [leave])

    @contextmanager
    def after_layers(self, hidden_BTD: Tensor) -> Iterator[None]:
        """Inside the block no layer runs, and the last one returns these hidden states."""

        def give(*_: Any, **__: Any) -> Tensor:
            return hidden_BTD

        def embedded(*_: Any, **__: Any) -> Tensor:
            return _first_stream(hidden_BTD)

        embeddings = self.model.get_input_embeddings()
        forwards = [embedded, *[give] * len(self.layers)]
        with other_forwards([embeddings, *self.layers], forwards):
            yield

    def _run(self, batch: TokenBatch, forwards: list[Forward]) -> Tensor:
        with other_forwards(list(self.layers)[: len(forwards)], forwards):
            try:
                self.feed(self.model, batch)
            except _HiddenStates as reached:
                return reached.hidden_BTD
            except _TakenApart as error:
                raise self.refusal(HANDS_ON_MORE) from error
        raise self.refusal("its layers do not run one after the other")

    def refusal(self, reason: str) -> UnsupportedModelError:
        """The error for a model whose layers do not run alone, for this reason."""
        return UnsupportedModelError(f"{self.label} {self.refused}: {reason}. {self.instead}.")


def _first_stream(hidden_BTD: Tensor) -> Tensor:
    """What has the shape of embeddings: layers may hand on (sequences, length, streams, width)."""
    return hidden_BTD if hidden_BTD.dim() == 3 else hidden_BTD[:, :, 0]
