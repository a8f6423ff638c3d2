"""Run a model that is larger than memory, one layer at a time, to the bits of the whole model."""

from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from analysis.calibration.free import give_back_memory
from analysis.calibration.loading import DTYPES, LOADING_ERRORS, CalibrationSettings
from analysis.calibration.relay import Relay
from analysis.calibration.skeleton import EMBEDDINGS, HEAD, OUTPUT, Skeleton
from analysis.checkpoint.aligned import align_weights
from analysis.corpora.sequences import TokenBatch
from analysis.errors import CheckpointError, UnsupportedModelError, first_line
from analysis.model.moe_model import MoEModel
from pruning.engine.masking import masked
from pruning.plan.plan import PruningPlan
from pruning.surgery.running import DoesNotLoad, DoesNotRun, Keys, Precision, Run, logits_of


def run_streamed(
    model: MoEModel, ids: Tensor, precision: Precision, plan: PruningPlan | None
) -> Generator[int, None, Run]:
    """Run a model layer by layer; in memory are one layer and the hidden states of all tokens.

    Refuses a model whose layers cannot run alone, see `Relay`.
    """
    give_back_memory()
    dtype = _own_dtype(model) if precision.stored == "auto" else precision.stored
    settings = CalibrationSettings(seq_len=ids.shape[1], dtype=dtype, device="cpu")
    with _loading():
        parts = _Parts(model, settings, precision.computed)
    yield 0
    skeleton = parts.skeleton
    instead = "Verify without --stream-layers, or with --level bytes"
    relay = Relay(skeleton.model, skeleton.layers, model.family.label, _feed, instead=instead)
    batch = _batch(ids)
    with parts.loaded(EMBEDDINGS), torch.no_grad():
        hidden_BTD = relay.embed(batch)
    yield parts.bytes_read
    for layer in range(len(skeleton.layers)):
        with parts.loaded(layer), torch.no_grad(), _as(model, plan, layer, skeleton.model):
            hidden_BTD = relay.layer(layer, batch, hidden_BTD)
        yield parts.bytes_read
    with parts.loaded(HEAD), parts.loaded(OUTPUT), relay.after_layers(hidden_BTD):
        logits = logits_of(skeleton.model, ids)
    yield parts.bytes_read
    return Run(logits, parts.keys())


class _Parts:
    """The parts of a model in memory, loaded and dropped one at a time."""

    def __init__(self, model: MoEModel, settings: CalibrationSettings, computed: str) -> None:
        self.skeleton = Skeleton(model, settings)
        self.bytes_read = 0
        self._computed = DTYPES[computed] if computed else None
        self._waiting = set(self.skeleton.parts)

    @contextmanager
    def loaded(self, part: int) -> Iterator[None]:
        """Inside the block a part is in memory, and may be run."""
        skeleton = self.skeleton
        with _loading():
            skeleton.load(part)
        self._waiting.discard(part)
        try:
            if self._computed:
                skeleton.cast(part, self._computed)
            align_weights(skeleton.model)
            yield
        except RuntimeError as error:
            raise DoesNotRun(first_line(error), self._unexpected) from error
        finally:
            skeleton.drop(part)
            self.bytes_read += skeleton.stored_bytes(part)

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
