"""One forward and one backward over a batch: what the group `gradient` needs.

The loss is the negative log-likelihood of the batch's tokens, each given those before it, in nats
and summed, so that a sequence's gradient does not depend on what shares its batch. Parameters are
frozen: no gradient of a weight is computed, and the graph begins at the first layer with experts.
Shape suffixes: B sequences, L length, R positions with a target, D hidden size, V vocabulary.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from analysis.arrays import BoolArray
from analysis.calibration.feed import input_device, prepare
from analysis.corpora import TokenBatch
from analysis.errors import CheckpointError, not_finite
from analysis.families import MoEFamily
from analysis.forwards import Forward, decoder_layers, wrap_forward

_LOGIT_ELEMENTS = 1 << 25  # of the vocabulary at once, as float32 128 MiB
_CPU_REFUSAL = "can't allocate memory"
BACKWARD_OPTIONS = "a smaller --batch-size, a shorter --seq-len, or --checkpoint-activations"


def predicted(batch: TokenBatch) -> BoolArray:
    """(B, L - 1) bool: True at positions whose next token is in the loss.

    That token must count, and be no document's first one: of what is packed side by side, no
    document sees the one before it.
    """
    wanted = batch.counted[:, 1:].copy()
    if batch.positions is not None:
        wanted &= batch.positions[:, 1:] != 0
    return wanted


def feed_backward(model: PreTrainedModel, batch: TokenBatch) -> None:
    """Run the model on a batch inside `collecting`, and backward from its loss."""
    try:
        with torch.enable_grad():
            output = model.base_model(**prepare(model, batch), use_cache=False)
            hidden_BLD: Tensor = output.last_hidden_state
            wanted = torch.from_numpy(predicted(batch)).to(hidden_BLD.device)
            if not wanted.any():
                return  # the activations are in the sums, and no loss depends on them
            hidden_RD = hidden_BLD[:, :-1][wanted]
            targets_R = torch.from_numpy(batch.input_ids[:, 1:]).to(hidden_BLD.device)[wanted]
            gradient_RD = _loss_gradient(model, output, hidden_RD.detach(), targets_R)
            torch.autograd.backward([hidden_RD], [gradient_RD])
    except RuntimeError as error:  # torch.OutOfMemoryError among them
        if not isinstance(error, torch.OutOfMemoryError) and _CPU_REFUSAL not in str(error):
            raise
        sequences, length = batch.mask.shape
        raise CheckpointError(
            f"The activations of {sequences} sequences of {length} tokens, which backward needs, "
            f"do not fit into memory; what helps: {BACKWARD_OPTIONS}."
        ) from error


def _loss_gradient(
    model: PreTrainedModel, output: Any, hidden_RD: Tensor, targets_R: Tensor
) -> Tensor:
    """dloss/dhidden, for a part of the positions after the other: logits are large."""
    rows = max(1, _LOGIT_ELEMENTS // int(model.config.get_text_config().vocab_size))
    gradients: list[Tensor] = []
    parts = zip(torch.split(hidden_RD, rows), torch.split(targets_R, rows), strict=True)
    for part_RD, part_R in parts:
        leaf_RD = part_RD.requires_grad_()
        logits_RV = _logits(model, output, leaf_RD)
        wide = torch.promote_types(logits_RV.dtype, torch.float32)
        device = logits_RV.device
        loss = functional.cross_entropy(logits_RV.to(wide), part_R.to(device), reduction="sum")
        if not loss.isfinite():
            raise not_finite("The loss has", hidden_RD.dtype)
        gradients += torch.autograd.grad(loss, leaf_RD)
    return torch.cat(gradients)


def _logits(model: PreTrainedModel, output: Any, hidden_RD: Tensor) -> Tensor:
    """(R, V) from final hidden states, by the model's own forward: some scale or cap them."""

    def ready(inner: Forward) -> Forward:
        return lambda *args, **kwargs: type(output)(last_hidden_state=hidden_RD[None])

    with ExitStack() as restore:
        wrap_forward(model.base_model, ready, restore)
        ids = torch.zeros((1, len(hidden_RD)), dtype=torch.int64, device=input_device(model))
        logits: Tensor = model(input_ids=ids, use_cache=False).logits
    return logits[0]


@contextmanager
def checkpointed(model: nn.Module, family: MoEFamily) -> Iterator[None]:
    """While open, each decoder layer keeps its input only and is computed again in backward.

    Not through transformers' own switch, which works in training mode alone: there some routers
    draw random numbers.
    """

    def recomputed(inner: Forward) -> Forward:
        return partial(checkpoint, inner, use_reentrant=False, preserve_rng_state=False)

    with ExitStack() as restore:
        for layer in decoder_layers(model, family):
            wrap_forward(layer, recomputed, restore)
        yield
