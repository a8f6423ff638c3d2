"""Run a model that is larger than memory, one layer at a time, to the bits of the whole model."""

from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
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
    resolve_dtype,
)
from analysis.calibration.relay import Relay
from analysis.calibration.skeleton import EMBEDDINGS, HEAD, OUTPUT, Skeleton
from analysis.checkpoint.aligned import align_weights
from analysis.corpora.sequences import TokenBatch
from analysis.errors import CheckpointError, UnsupportedModelError, first_line
from analysis.model.moe_model import MoEModel
from analysis.progress import Costs, added, scaled
from pruning.engine.masking import masked
from pruning.engine.paused import PausedPlans
from pruning.plan.plan import PruningPlan
from pruning.surgery.layer_memory import layer_memory
from pruning.surgery.running import DoesNotLoad, DoesNotRun, Keys, Precision, Run, logits_of
from pruning.surgery.verify_costs import RunCosts, run_costs


def run_streamed(
    model: MoEModel,
    ids: Tensor,
    precision: Precision,
    plan: PruningPlan | None,
    *,
    at_once: int | None = None,
) -> Generator[Costs, None, Run]:
    """Run a model layer by layer; in memory are one layer and the hidden states of all tokens.

    `at_once`: so many experts of a layer are loaded at once, 0 for all; by default what fits.
    Refuses a model whose layers cannot run alone, see `Relay`.
    """
    give_back_memory()
    dtype = _own_dtype(model) if precision.stored == "auto" else precision.stored
    settings = CalibrationSettings(seq_len=ids.shape[1], dtype=dtype, device="cpu")
    with _loading():
        if at_once is None:
            computed = DTYPES[resolve_dtype(precision.computed or dtype, model)]
            repaired = plan is not None and plan.repair is not None
            at_once = layer_memory(model, computed.itemsize, repaired=repaired).at_once
        costs = run_costs(model, ids.numel(), precision.computed, by_layers=True, at_once=at_once)
        parts = _Parts(model, settings, precision.computed, at_once, costs)
    yield {}
    skeleton = parts.skeleton
    instead = "Verify without --stream-layers, or with --level bytes"
    relay = Relay(
        skeleton.model,
        skeleton.layers,
        model.family.label,
        _feed,
        instead=instead,
        inseparable=model.inseparable,
    )
    batch = _batch(ids)
    with parts.loaded(EMBEDDINGS), torch.no_grad():
        hidden_BTD = relay.embed(batch)
    yield parts.read(EMBEDDINGS)
    for layer in range(len(skeleton.layers)):
        candidate = partial(_as, model, plan, layer, skeleton.model)
        run = partial(relay.layer, layer, batch, hidden_BTD)
        hidden_BTD = yield from parts.through(layer, run, candidate)
    with parts.loaded(HEAD), parts.loaded(OUTPUT), relay.after_layers(hidden_BTD):
        logits = logits_of(skeleton.model, ids)
    yield added(added(parts.read(HEAD), parts.read(OUTPUT)), added(costs.logits, parts.not_taken))
    return Run(logits, parts.keys())


_ONLY = "all"  # the one forward that pauses


class _Parts:
    """The parts of a model in memory, loaded and dropped one at a time."""

    def __init__(
        self,
        model: MoEModel,
        settings: CalibrationSettings,
        computed: str,
        at_once: int,
        costs: RunCosts,
    ) -> None:
        """`at_once`: experts of a layer that are loaded at once; 0: all."""
        self.skeleton, self._costs = Skeleton(model, settings), costs
        self._model = model
        self._taken = 0  # bytes of memory for stacked experts
        self._computed = DTYPES[computed] if computed else None
        self._at_once = at_once
        self._waiting = set(self.skeleton.parts)

    @property
    def not_taken(self) -> Costs:
        """The costs of memory that was there: that of small tensors is the heap's."""
        return self._costs.taking(max(0, self._costs.stacks - self._taken))

    def read(self, part: int) -> Costs:
        """The costs of reading a part; experts take the memory of those of the layer before."""
        is_sparse = any(layer.index == part for layer in self._model.layers)
        reading = self._costs.reading if is_sparse else self._costs.reading_anew
        return reading(self.skeleton.stored_bytes(part))

    @contextmanager
    def loaded(self, part: int, *, experts: bool = True) -> Iterator[None]:
        """Inside the block a part is in memory, and may be run; experts may be left out."""
        skeleton = self.skeleton
        with _loading():
            skeleton.load(part, experts=experts)
        self._waiting.discard(part)
        try:
            self._prepare(part)
            yield
        except RuntimeError as error:
            raise DoesNotRun(first_line(error), self._unexpected) from error
        finally:
            skeleton.drop(part)

    def _prepare(self, part: int) -> None:
        if self._computed:
            self.skeleton.cast(part, self._computed)
        align_weights(self.skeleton.model)

    def through(
        self,
        layer: int,
        run: Callable[[], Tensor],
        candidate: Callable[[], AbstractContextManager[None]],
    ) -> Generator[Costs, None, Tensor]:
        """What a layer computes as a candidate has it; experts in blocks where it is too large."""
        read, ran = self.read(layer), self._costs.running(layer)
        experts = self.skeleton.experts(layer) if self._at_once else None
        blocks = blocks_of(experts, self._at_once) if experts is not None else []
        if experts is None or len(blocks) < 2:
            with _loading():
                for nbytes in self.skeleton.take_memory(layer):
                    self._taken += nbytes
                    yield self._costs.taking(nbytes)
            with self.loaded(layer), torch.no_grad(), candidate():
                hidden_BTD = run()
            yield added(read, ran)
            return hidden_BTD
        states = ForwardStates(HiddenStates(Path(), on_disk=False))
        with self.loaded(layer, experts=False):
            paused = PausedPlans(experts, blocks, states, self.skeleton.device)
            # Between steps the caller may do anything.
            with torch.no_grad(), candidate():
                paused.start(_ONLY, run)
            for block in blocks:
                with _loading():
                    self.skeleton.load_experts(layer, block)
                self._prepare(layer)
                paused.add(_ONLY, candidate())
                yield scaled(added(read, ran), 1 / len(blocks))
            self.skeleton.drop_experts(layer)
            with torch.no_grad(), candidate():
                return paused.finish(_ONLY, run)

    def keys(self) -> Keys:
        """What loading could not place; nothing is read of layers that the model lacks."""
        ours = {EMBEDDINGS, HEAD, OUTPUT, *range(len(self.skeleton.layers))}
        with _loading():
            for part in self._waiting - ours:
                self.skeleton.load(part)
        return self._unexpected

    @property
    def _unexpected(self) -> Keys:
        return {"unexpected_keys": self.skeleton.unexpected}


def _own_dtype(model: MoEModel) -> str:
    """The dtype in which transformers loads a checkpoint: what it states, first of all."""
    config = model.checkpoint.config
    stated = config.get("dtype") or config.get("torch_dtype")
    return stated if stated in DTYPES else "auto"


@contextmanager
def _loading() -> Iterator[None]:
    try:
        yield
    except (CheckpointError, UnsupportedModelError, *LOADING_ERRORS) as error:
        raise DoesNotLoad(first_line(error)) from error


def _feed(model: PreTrainedModel, batch: TokenBatch) -> Tensor:
    return logits_of(model, torch.from_numpy(batch.input_ids))


def _batch(ids: Tensor) -> TokenBatch:
    everywhere = np.ones(ids.shape, np.bool_)
    return TokenBatch(ids.numpy(), everywhere, everywhere, np.zeros(ids.shape, np.int64))


def _as(
    model: MoEModel, plan: PruningPlan | None, layer: int, loaded: PreTrainedModel
) -> AbstractContextManager[None]:
    """Inside the block a layer computes as a plan has it."""
    return nullcontext() if plan is None else masked(loaded, model.family, plan.of_layer(layer))
