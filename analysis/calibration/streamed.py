"""Layer-streamed calibration for models larger than memory: one layer in memory at a time.

Each weight is read once; between layers the hidden states of all tokens are kept, in memory or on
disk. The model's own forward runs for every batch and layer: earlier layers pass the hidden states
through, later ones are not reached. So the model itself makes masks, positions and other inputs.
"""

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from analysis.calibration.experts import collecting
from analysis.calibration.feed import feed
from analysis.calibration.free import give_back_memory
from analysis.calibration.hidden import HiddenStates, are_too_large
from analysis.calibration.loading import DTYPES, CalibrationSettings, resolve_dtype
from analysis.calibration.partial import Work, note_model
from analysis.calibration.skeleton import EMBEDDINGS, Skeleton
from analysis.corpora import TokenBatch, TokenSequences
from analysis.errors import StatsError, UnsupportedModelError, not_finite
from analysis.forwards import Forward, other_forwards, tensors_in
from analysis.model import MoEModel
from analysis.progress import Progress


def hidden_bytes(model: MoEModel, sequences: TokenSequences, settings: CalibrationSettings) -> int:
    """Size of the hidden states of all tokens between two layers."""
    item = DTYPES[resolve_dtype(settings.dtype, model)].itemsize
    tokens = sequences.num_tokens + sequences.num_padded(settings.batch_size)
    return tokens * model.streams_size * item


def num_streamed(model: MoEModel) -> int:
    """Layers to run: those after the last one with experts do not change the statistics."""
    return model.layers[-1].index + 1


def stream(
    model: MoEModel, sequences: TokenSequences, settings: CalibrationSettings, work: Work
) -> Generator[Progress, None, None]:
    """Add the statistics of all tokens to the sums of `work`, layer by layer.

    Resumes after the last saved layer. The sums equal those of the whole model run on the same
    batches, bit for bit.
    """
    if work.partial is None or work.processes.world > 1:
        raise StatsError("Layers are streamed in one process; run without a launcher.")
    give_back_memory()
    place = settings.placement
    folder = work.partial.path
    if place.hidden_states_dir:
        folder = place.hidden_states_dir.expanduser() / folder.name
    on_disk = bool(place.hidden_states_dir)
    on_disk = on_disk or are_too_large(hidden_bytes(model, sequences, settings))
    hidden = HiddenStates(folder, on_disk=on_disk)
    layers = num_streamed(model)
    if work.state.layers < layers:
        skeleton = Skeleton(model, settings)
        note_model(work.state, skeleton.model, settings)
        relay = Relay(skeleton.model, skeleton.layers, model.family.label)
        streamed = _Stream(model, sequences, settings.batch_size, work, hidden, skeleton, relay)
        yield from streamed.run(layers, saves_each=on_disk)
        work.save()  # before the hidden states go: until then a resume needs them
    hidden.clear()
    if place.hidden_states_dir and folder.is_dir():
        folder.rmdir()


class _Alone(Tensor):
    """Hidden states of a layer that hands on nothing else, so that no model takes them apart."""

    def __iter__(self) -> Iterator[Tensor]:
        raise _TakenApart


class _TakenApart(Exception):
    """The model expects several values of a layer."""


class _Reached(Exception):
    """Carries hidden states out of a forward."""

    def __init__(self, hidden_BTD: Tensor) -> None:
        super().__init__()
        self.hidden_BTD = hidden_BTD


@dataclass(frozen=True, slots=True)
class Relay:
    """Runs one layer of a model on given hidden states, or the embeddings alone."""

    model: PreTrainedModel  # only what runs must be loaded
    layers: nn.ModuleList  # its decoder layers
    label: str  # of the family, for messages
    feed: Callable[[PreTrainedModel, TokenBatch], None] = feed  # runs the trunk on a batch

    def embed(self, batch: TokenBatch) -> Tensor:
        """Hidden states (sequences, length, width) that the first layer gets."""
        seen: list[Tensor] = []

        def check(position: int, hidden_BTD: Tensor, others: Any) -> Tensor:
            if not position:
                seen.append(hidden_BTD)
                hidden_BTD = hidden_BTD.as_subclass(_Alone)
            elif hidden_BTD is not seen[-1]:
                raise self._refusal("the model changes hidden states between its layers")
            for value in tensors_in(others):
                if value is hidden_BTD or value.shape == hidden_BTD.shape:
                    raise self._refusal("a layer gets hidden states of another one")
            seen.append(hidden_BTD)
            if position == len(self.layers) - 1:
                raise _Reached(seen[0])
            return hidden_BTD

        forwards = [
            lambda hidden, *args, _at=at, **named: check(_at, hidden, (args, named))
            for at in range(len(self.layers))
        ]
        with other_forwards(*self._unloaded()):
            return self._run(batch, forwards)

    def _unloaded(self) -> tuple[list[nn.Module], list[Forward]]:
        """Modules outside of the layers without weights, and forwards that refuse to run them."""
        inside = {id(module) for module in self.layers.modules()}
        found = [
            (name, module)
            for name, module in self.model.named_modules()
            if id(module) not in inside and any(p.is_meta for p in module.parameters(recurse=False))
        ]
        return [module for _, module in found], [self._refuses(name) for name, _ in found]

    def _refuses(self, name: str) -> Forward:
        def refuse(*_: Any, **__: Any) -> Tensor:
            raise self._refusal(f"each layer also gets what {name} makes of the tokens")

        return refuse

    def layer(self, number: int, batch: TokenBatch, hidden_BTD: Tensor) -> Tensor:
        """The layer's output for these hidden states."""

        def through(hidden: Tensor, *_: Any, **__: Any) -> Tensor:
            return hidden

        def run(_: Tensor, *args: Any, **named: Any) -> Tensor:
            output = original(hidden_BTD, *args, **named)
            raise _Reached(output if isinstance(output, Tensor) else output[0])

        original = self.layers[number].forward
        embeddings = self.model.get_input_embeddings()
        with other_forwards([embeddings], [lambda *_, **__: _first_stream(hidden_BTD)]):
            return self._run(batch, [through] * number + [run])

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
            except _Reached as reached:
                return reached.hidden_BTD
            except _TakenApart as error:
                raise self._refusal("a layer hands on more than hidden states") from error
        raise self._refusal("its layers do not run one after the other")

    def _refusal(self, reason: str) -> UnsupportedModelError:
        return UnsupportedModelError(
            f"{self.label} cannot be streamed layer by layer: {reason}. Use --device-map auto "
            "with --offload-folder instead."
        )


def _first_stream(hidden_BTD: Tensor) -> Tensor:
    """What has the shape of embeddings: layers may hand on (sequences, length, streams, width)."""
    return hidden_BTD if hidden_BTD.dim() == 3 else hidden_BTD[:, :, 0]


@dataclass(frozen=True, slots=True)
class _Stream:
    """One pass through the layers."""

    model: MoEModel
    sequences: TokenSequences
    batch_size: int
    work: Work
    hidden: HiddenStates
    skeleton: Skeleton
    relay: Relay

    def run(self, layers: int, *, saves_each: bool) -> Generator[Progress, None, None]:
        """Run the remaining layers; save after each, or when a save is due."""
        state = self.work.state
        with collecting(self.skeleton.model, self.model, self.work.sums):
            if state.layers:
                self.hidden.resume(state.layers, -(-len(self.sequences.rows) // self.batch_size))
                yield self._progress(f"resumed after {state.layers} of {layers} layers")
            else:
                self.hidden.clear()
                self.skeleton.load(EMBEDDINGS)
                for number, batch in enumerate(self.sequences.batches(self.batch_size)):
                    with torch.no_grad():
                        self.hidden.put(0, number, self.relay.embed(batch))
                    yield self._progress()
                self.skeleton.drop(EMBEDDINGS)
            for number in range(state.layers, layers):
                yield from self._layer(number, is_last=number == layers - 1)
                state.layers += 1
                self.hidden.advance()
                if number < layers - 1 and (saves_each or self.work.is_due()):
                    self.hidden.save()
                    self.work.save()
                    self.hidden.clear(but=state.layers)

    def _layer(self, layer: int, *, is_last: bool) -> Generator[Progress, None, None]:
        started, state = time.monotonic(), self.work.state
        self.skeleton.load(layer)
        for number, batch in enumerate(self.sequences.batches(self.batch_size)):
            with torch.no_grad():
                before = self.hidden.get(number).to(self.skeleton.device)
                after = self.relay.layer(layer, batch, before)
            if not after[torch.from_numpy(batch.mask)].isfinite().all():
                raise not_finite(f"Layer {layer} gave", after.dtype)
            if not is_last:
                self.hidden.put(layer + 1, number, after)
            state.tokens += int(batch.mask.sum())
            yield self._progress(layer=layer)
        self.skeleton.drop(layer)
        state.seconds += time.monotonic() - started

    def _progress(self, note: str = "", layer: int = EMBEDDINGS) -> Progress:
        phase = "calibrating" if layer == EMBEDDINGS else f"calibrating layer {layer}"
        return Progress(
            phase,
            self.work.state.tokens,
            self.sequences.num_tokens * num_streamed(self.model),
            "tokens of a layer",
            note,
        )
