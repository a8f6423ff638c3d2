"""Run models that are larger than memory, one layer at a time, to the bits of the whole models."""

from collections.abc import Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from itertools import pairwise, zip_longest
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from analysis.calibration.blocks import blocks_of
from analysis.calibration.free import give_back_memory
from analysis.calibration.hidden import ForwardStates, HiddenStates
from analysis.calibration.loading import (
    DTYPES,
    LOADING_ERRORS,
    CalibrationSettings,
)
from analysis.calibration.relay import Relay
from analysis.calibration.skeleton import EMBEDDINGS, HEAD, OUTPUT, Skeleton
from analysis.calibration.weight_memory import WeightMemory
from analysis.checkpoint.aligned import align_weights
from analysis.corpora.sequences import TokenBatch
from analysis.errors import CheckpointError, UnsupportedModelError, first_line
from analysis.progress import Costs, added, scaled
from pruning.engine.masking import masked
from pruning.engine.paused import PausedPlans
from pruning.surgery.running import (
    DoesNotLoad,
    DoesNotRun,
    Keys,
    Outcome,
    Run,
    logits_of,
    refuse_lack_of_memory,
)
from pruning.surgery.verify_costs import ForwardPass, RunCosts, costs_in_step, own_dtype


def run_in_step(
    passes: Sequence[ForwardPass], ids: Tensor, *, at_once: int | None = None
) -> Generator[Costs, None, list[Outcome]]:
    """Run models layer by layer: the first layer of each, the second of each, and so on.

    So all kinds of work have begun after a layer, and tell how long the rest takes. In memory are
    one layer, whose place all models take in turn, and the hidden states of all tokens. Yields the
    costs of what was done since it last did, in all those of `costs_in_step`.

    `at_once`: so many experts of a layer are loaded at once, 0 for all; by default what fits.
    Refuses models whose layers cannot run alone, see `Relay`.
    """
    give_back_memory()
    memory, costs = WeightMemory(_MOST), costs_in_step(passes, ids.numel(), at_once=at_once)
    runs = [_InParts(one, ids, its, memory) for one, its in zip(passes, costs, strict=True)]
    for run, later in pairwise(runs):
        run.is_read_again = run.model is later.model
    for turn in zip_longest(*(run.parts() for run in runs)):
        for part in turn:
            yield from part or ()
    return [run.outcome for run in runs if run.outcome is not None]


_MOST = 32  # bytes of the original in float32 for one of the export, say of a quarter in bfloat16
_INSTEAD = "free some, or use --level bytes"
_ONLY = "all"  # the one forward that pauses


class _InParts:
    """A model of which one part at a time is in memory and runs."""

    _skeleton: Skeleton
    _relay: Relay
    _hidden_BTD: Tensor

    def __init__(
        self, one: ForwardPass, ids: Tensor, costs: RunCosts, memory: WeightMemory
    ) -> None:
        """Nothing is opened yet; `memory` is that of all models in step."""
        self.model, self._plan, self._precision = one.model, one.plan, one.precision
        self._ids, self._batch, self._costs, self._memory = ids, _batch(ids), costs, memory
        self._taken = 0  # bytes of memory for stacked experts
        self._waiting: set[int] = set()  # parts that nothing has loaded
        self.is_read_again = False  # whether the next model is the same, in another dtype
        self.outcome: Outcome | None = None  # once it has run, or cannot

    def parts(self) -> Iterator[Generator[Costs, None, None]]:
        """What it does: it opens, runs its embeddings, each layer, and what follows them."""
        parts = self._parts()
        while self.outcome is None:
            yield self._tried(next(parts))

    def _parts(self) -> Iterator[Generator[Costs, None, None]]:
        yield self._open()
        yield self._embed()
        yield from map(self._through, range(len(self._skeleton.layers)))
        yield self._end()

    def _tried(self, part: Generator[Costs, None, None]) -> Generator[Costs, None, None]:
        try:
            yield from part
        except (DoesNotLoad, DoesNotRun) as error:
            self.outcome = error

    def _open(self) -> Generator[Costs, None, None]:
        stored = self._precision.stored
        dtype = own_dtype(self.model) if stored == "auto" else stored
        settings = CalibrationSettings(seq_len=self._ids.shape[1], dtype=dtype, device="cpu")
        with _loading():
            self._skeleton = Skeleton(
                self.model, settings, self._memory, is_read_again=self.is_read_again
            )
        self._waiting = set(self._skeleton.parts)
        self._relay = Relay(
            self._skeleton.model,
            self._skeleton.layers,
            self.model.family.label,
            _feed,
            instead="Verify without --stream-layers, or with --level bytes",
            inseparable=self.model.inseparable,
        )
        yield self._costs.opening

    def _embed(self) -> Generator[Costs, None, None]:
        with self._loaded(EMBEDDINGS), torch.no_grad():
            self._hidden_BTD = self._relay.embed(self._batch)
        yield self._read(EMBEDDINGS)

    def _end(self) -> Generator[Costs, None, None]:
        after_layers = self._relay.after_layers(self._hidden_BTD)
        with self._loaded(HEAD), self._loaded(OUTPUT):
            yield added(self._read(HEAD), self._read(OUTPUT))
            with after_layers:
                logits = logits_of(self._skeleton.model, self._ids)
        yield self._costs.logits
        # Small tensors take the heap's memory.
        yield self._costs.taking(max(0, self._costs.stacks - self._taken))
        self.outcome = Run(logits, self._keys())

    def _read(self, part: int) -> Costs:
        """The costs of reading a part; experts take the memory of those of the layer before."""
        is_sparse = any(layer.index == part for layer in self.model.layers)
        reading = self._costs.reading if is_sparse else self._costs.reading_anew
        return reading(self._skeleton.stored_bytes(part))

    @contextmanager
    def _loaded(self, part: int, *, experts: bool = True) -> Iterator[None]:
        """Inside the block a part is in memory, and may be run; experts may be left out."""
        skeleton = self._skeleton
        with _loading():
            skeleton.load(part, experts=experts)
        self._waiting.discard(part)
        try:
            self._prepare(part)
            yield
        except RuntimeError as error:
            refuse_lack_of_memory(error, _INSTEAD)
            raise DoesNotRun(first_line(error), self._unexpected) from error
        finally:
            skeleton.drop(part)

    def _prepare(self, part: int) -> None:
        if self._precision.computed:
            self._skeleton.cast(part, DTYPES[self._precision.computed])
        align_weights(self._skeleton.model)

    def _through(self, layer: int) -> Generator[Costs, None, None]:
        """A layer as the plan has it; its experts in blocks where it is too large."""
        skeleton, at_once = self._skeleton, self._costs.at_once
        run = partial(self._relay.layer, layer, self._batch, self._hidden_BTD)
        reading, running = self._read(layer), self._costs.running(layer)
        experts = skeleton.experts(layer) if at_once else None
        blocks = blocks_of(experts, at_once) if experts is not None else []
        if experts is None or len(blocks) < 2:
            with _loading():
                for nbytes in skeleton.take_memory(layer):
                    self._taken += nbytes
                    yield self._costs.taking(nbytes)
            with self._loaded(layer):
                yield reading
                with torch.no_grad(), self._planned(layer):
                    self._hidden_BTD = run()
            yield running
            return
        states = ForwardStates(HiddenStates(Path(), on_disk=False))
        with self._loaded(layer, experts=False):
            paused = PausedPlans(experts, blocks, states, skeleton.device)
            # Between steps the caller may do anything.
            with torch.no_grad(), self._planned(layer):
                paused.start(_ONLY, run)
            for block in blocks:
                with _loading():
                    skeleton.load_experts(layer, block)
                self._prepare(layer)
                yield scaled(reading, 1 / len(blocks))
                paused.add(_ONLY, self._planned(layer))
                yield scaled(running, 1 / len(blocks))
            skeleton.drop_experts(layer)
            with torch.no_grad(), self._planned(layer):
                self._hidden_BTD = paused.finish(_ONLY, run)

    def _planned(self, layer: int) -> AbstractContextManager[None]:
        """Inside the block a layer computes as the plan has it."""
        if self._plan is None:
            return nullcontext()
        return masked(self._skeleton.model, self.model.family, self._plan.of_layer(layer))

    def _keys(self) -> Keys:
        """What loading could not place; nothing is read of layers that the model lacks."""
        ours = {EMBEDDINGS, HEAD, OUTPUT, *range(len(self._skeleton.layers))}
        with _loading():
            for part in self._waiting - ours:
                self._skeleton.load(part)
        return self._unexpected

    @property
    def _unexpected(self) -> Keys:
        return {"unexpected_keys": self._skeleton.unexpected}


@contextmanager
def _loading() -> Iterator[None]:
    try:
        yield
    except (CheckpointError, UnsupportedModelError, *LOADING_ERRORS) as error:
        refuse_lack_of_memory(error, _INSTEAD)
        raise DoesNotLoad(first_line(error)) from error


def _feed(model: PreTrainedModel, batch: TokenBatch) -> Tensor:
    return logits_of(model, torch.from_numpy(batch.input_ids))


def _batch(ids: Tensor) -> TokenBatch:
    everywhere = np.ones(ids.shape, np.bool_)
    return TokenBatch(ids.numpy(), everywhere, everywhere, np.zeros(ids.shape, np.int64))
