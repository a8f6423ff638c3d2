"""Layer-streamed calibration for models larger than memory: one layer in memory at a time.

Each weight is read once; between layers the hidden states of all tokens are kept, in memory or on
disk. The model's own forward runs for every batch and layer, see `Relay`. The experts of a layer
that is larger than memory run in blocks. Prediction heads (MTP) follow as one more stage.
"""

import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

import torch
from torch import Tensor
from transformers import PreTrainedModel

from analysis.calibration.blocks import blocks_note, blocks_of, layers_in_blocks
from analysis.calibration.experts import collecting
from analysis.calibration.feed import run_trunk
from analysis.calibration.free import give_back_memory
from analysis.calibration.heads import Heads
from analysis.calibration.hidden import ForwardStates, HiddenStates, are_too_large
from analysis.calibration.loading import (
    DTYPES,
    CalibrationSettings,
    resolve_device,
    resolve_dtype,
)
from analysis.calibration.partial import Work, note_model
from analysis.calibration.paused import PausedForwards
from analysis.calibration.relay import Relay
from analysis.calibration.skeleton import EMBEDDINGS, HEAD, Skeleton
from analysis.calibration.weight_memory import bytes_to_take
from analysis.corpora.sequences import TokenBatch, TokenSequences
from analysis.errors import StatsError, not_finite
from analysis.files.home import from_home
from analysis.model.layer_costs import LayerCosts, layer_costs
from analysis.model.moe_model import MoEModel
from analysis.model.parts import stack_bytes
from analysis.progress import LOADING, Progress, Tally, cost

# Hidden states, and what experts get and give where these run in blocks.
PAUSED_TIMES = 3


def hidden_bytes(model: MoEModel, sequences: TokenSequences, settings: CalibrationSettings) -> int:
    """Size of the hidden states of all tokens between two layers."""
    item = DTYPES[resolve_dtype(settings.dtype, model)].itemsize
    tokens = sequences.num_tokens + sequences.num_padded(settings.batch_size)
    return tokens * model.streams_size * item


def is_on_disk(nbytes: int, settings: CalibrationSettings) -> bool:
    """Whether so many bytes of hidden states are kept on disk."""
    return bool(settings.placement.hidden_states_dir) or are_too_large(nbytes)


def num_stages(model: MoEModel, work: Work) -> int:
    """Layers to run, and one more stage for prediction heads.

    Without heads, layers after the last one with experts do not change the statistics.
    """
    return model.depth + 1 if "heads" in work.sums.groups else model.layers[-1].index + 1


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
        folder = from_home(place.hidden_states_dir) / folder.name
    times = PAUSED_TIMES if place.experts_at_once else 1
    on_disk = is_on_disk(times * hidden_bytes(model, sequences, settings), settings)
    hidden = HiddenStates(folder, on_disk=on_disk)
    stages = num_stages(model, work)
    if work.state.layers < stages:
        costs, tokens = layer_costs(model), sequences.num_tokens
        twice = layers_in_blocks(model, place.experts_at_once)
        tally = _tally(costs, sequences, work, stages, twice)
        layers = [*range(work.state.layers, min(stages, model.depth))]
        at_once = [layer for layer in layers if layer not in twice]
        tally.correct("allocate", cost("allocate", _new_memory(model, settings, at_once)))
        yield Progress(LOADING, 0, tokens, "tokens", whole=tally.whole)
        skeleton = Skeleton(model, settings)
        note_model(work.state, skeleton.model, settings)
        relay = Relay(
            skeleton.model, skeleton.layers, model.family.label, inseparable=model.inseparable
        )
        tally.correct("allocate", cost("allocate", skeleton.memory_to_take(at_once)))
        streamed = _Stream(model, sequences, settings, work, hidden, skeleton, relay, costs, tally)
        yield from streamed.run(stages, saves_each=on_disk)
        work.save()  # before the hidden states go: until then a resume needs them
    hidden.clear()
    if place.hidden_states_dir and folder.is_dir():
        folder.rmdir()


def _new_memory(model: MoEModel, settings: CalibrationSettings, layers: Iterable[int]) -> int:
    """Bytes of memory that layers are expected to take, before a skeleton says it."""
    if resolve_device(settings.device).type != "cpu":
        return 0
    stacks = stack_bytes(model, DTYPES[resolve_dtype(settings.dtype, model)].itemsize)
    return bytes_to_take([stacks.get(layer, 0)] for layer in layers)


def _tally(
    costs: LayerCosts,
    sequences: TokenSequences,
    work: Work,
    stages: int,
    twice: Collection[int],
) -> Tally:
    """Reading and running all stages; those that an earlier run did are done.

    In the layers `twice` what surrounds experts runs twice.
    """
    tokens = sequences.num_tokens
    total, before = (
        {
            "read": costs.reading(*layers),
            "multiply": costs.running(tokens, *layers)
            + costs.running_around(tokens, *(layer for layer in layers if layer in twice)),
        }
        for layers in (range(stages), range(work.state.layers))
    )
    return Tally(total, before)


@dataclass(frozen=True, slots=True)
class _Stream:
    """One pass through the layers."""

    model: MoEModel
    sequences: TokenSequences
    settings: CalibrationSettings
    work: Work
    hidden: HiddenStates
    skeleton: Skeleton
    relay: Relay
    costs: LayerCosts
    tally: Tally  # of this run's work, see `_tally`

    def run(self, stages: int, *, saves_each: bool) -> Generator[Progress, None, None]:
        """Run the remaining layers and the heads; save after each, or when a save is due."""
        state, batch_size = self.work.state, self.settings.batch_size
        with collecting(self.skeleton.model, self.model, self.work.sums):
            if at_once := self.settings.placement.experts_at_once:
                yield self._progress(blocks_note(at_once))
            if state.layers:
                self.hidden.resume(state.layers, -(-len(self.sequences.rows) // batch_size))
                yield self._progress(f"resumed after {state.layers} of {stages} layers")
            else:
                self.hidden.clear()
                self.skeleton.load(EMBEDDINGS)
                for number, batch in enumerate(self.sequences.batches(batch_size)):
                    with torch.no_grad():
                        self.hidden.put(0, number, self.relay.embed(batch))
                    yield self._progress()
                self.skeleton.drop(EMBEDDINGS)
            for number in range(state.layers, stages):
                is_last = number == stages - 1
                if number < self.model.depth:
                    yield from self._layer(number, is_last=is_last)
                else:
                    yield from self._heads()
                state.layers += 1
                self.hidden.advance()
                if not is_last and (saves_each or self.work.is_due()):
                    self.hidden.save()
                    self.work.save()
                    self.hidden.clear(but=state.layers)

    def _layer(self, layer: int, *, is_last: bool) -> Generator[Progress, None, None]:
        started, at_once = time.monotonic(), self.settings.placement.experts_at_once
        experts = self.skeleton.experts(layer) if at_once else None
        paused = None
        if experts is not None and len(blocks := blocks_of(experts, at_once)) > 1:
            states = ForwardStates(self.hidden)
            paused = PausedForwards(experts, states, self.skeleton.device)
            yield from self._experts_in_blocks(layer, paused, blocks)
        else:
            for nbytes in self.skeleton.take_memory(layer):
                self.tally.add("allocate", cost("allocate", nbytes))
                yield self._progress(layer=layer)
            self.skeleton.load(layer)
            self.tally.add("read", self.costs.reading(layer))
        for number, batch in self._batches():
            yield self._progress(layer=layer)
            with torch.no_grad():
                if paused:
                    again = partial(self._run, layer, number, batch, run_trunk)
                    after = paused.finish(number, again)
                else:
                    after = self._run(layer, number, batch)
            if not after[torch.from_numpy(batch.mask)].isfinite().all():
                raise not_finite(f"Layer {layer} gave", after.dtype)
            if not is_last:
                self.hidden.put(layer + 1, number, after)
            self.work.state.tokens += int(batch.mask.sum())
            if paused:
                self._count_around(batch, layer)
            else:
                self._count(batch, layer)
        # This comes before its last batch is told as done, as 4 GiB take a third of a second.
        self.skeleton.drop(layer)
        if paused:
            paused.states.clear()
        yield self._progress(layer=layer)
        self.work.state.seconds += time.monotonic() - started

    def _experts_in_blocks(
        self, layer: int, paused: PausedForwards, blocks: Sequence[range]
    ) -> Generator[Progress, None, None]:
        """Add the statistics of a layer; its forwards are left before what follows the experts."""
        self.skeleton.load(layer, experts=False)
        for number, batch in self._batches():
            with torch.no_grad():
                paused.start(partial(self._run, layer, number, batch))
            self._count_around(batch, layer)
            yield self._progress(layer=layer)
        turns = list(product(range(paused.num_passes), blocks))
        for at_pass, block in turns:
            self.skeleton.load_experts(layer, block)
            self.tally.add("read", self.costs.reading(layer) / len(turns))
            yield self._progress(layer=layer)
            for number, batch in self._batches():
                with torch.no_grad():
                    paused.add(number, at_pass)
                    if (at_pass, block) == (0, blocks[-1]):
                        paused.close(number)
                self._count(batch, layer, 1 / len(turns))
                self._count_around(batch, layer, -1 / len(turns))
                yield self._progress(layer=layer)
        self.skeleton.drop_experts(layer)

    def _batches(self) -> Iterator[tuple[int, TokenBatch]]:
        return enumerate(self.sequences.batches(self.settings.batch_size))

    def _run(
        self,
        layer: int,
        number: int,
        batch: TokenBatch,
        feed: Callable[[PreTrainedModel, TokenBatch], object] | None = None,
    ) -> Tensor:
        """The output of a layer for a batch; by `feed`, which collects if it is left out."""
        before = self.hidden.get(number).to(self.skeleton.device)
        relay = replace(self.relay, feed=feed) if feed else self.relay
        return relay.layer(layer, batch, before)

    def _heads(self) -> Generator[Progress, None, None]:
        """The prediction heads, on what the last layer gave."""
        started, state, model = time.monotonic(), self.work.state, self.skeleton.model
        self.skeleton.load(HEAD)
        self.skeleton.load(EMBEDDINGS)
        self.tally.add("read", self.costs.reading(self.model.depth))
        yield self._progress(layer=self.model.depth)
        heads = Heads(self.model, self.settings, self.work.sums)
        for number, batch in enumerate(self.sequences.batches(self.settings.batch_size)):
            last_BTD = self.hidden.get(number).to(self.skeleton.device)
            with torch.no_grad(), self.relay.after_layers(last_BTD):
                hidden_BTD = run_trunk(model, batch)
            heads.feed(batch, hidden_BTD, model.get_input_embeddings())
            state.tokens += int(batch.mask.sum())
            self._count(batch, self.model.depth)
            yield self._progress(layer=self.model.depth)
        state.seconds += time.monotonic() - started

    def _count(self, batch: TokenBatch, layer: int, share: float = 1.0) -> None:
        """Count the work of a batch in a layer, or a share of it."""
        self.tally.add("multiply", share * self.costs.running(int(batch.mask.sum()), layer))

    def _count_around(self, batch: TokenBatch, layer: int, share: float = 1.0) -> None:
        """The same for what surrounds experts."""
        around = self.costs.running_around(int(batch.mask.sum()), layer)
        self.tally.add("multiply", share * around)

    def _progress(self, note: str = "", layer: int = EMBEDDINGS) -> Progress:
        at = "" if layer == EMBEDDINGS else f"layer {layer}"
        if layer == self.model.depth:
            at = "prediction heads"
        return Progress(
            "calibrating",
            self.work.state.tokens,
            self.sequences.num_tokens * num_stages(self.model, self.work),
            "tokens of a layer",
            note,
            at,
            self.tally.whole,
        )
