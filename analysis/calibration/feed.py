"""Feed one batch to a model inside `collecting`: forward, and backward for the group `gradient`.

The loss is the negative log-likelihood of the batch's tokens, each given those before it, in nats
and summed, so a sequence's gradient does not depend on its batch. Parameters are frozen: no
gradient of a weight is computed, and the graph begins at the first layer with experts.
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
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel

from analysis.calibration.experts import batch_mask
from analysis.calibration.free import lacks_memory
from analysis.calibration.loading import LOADING_ERRORS, load_error
from analysis.corpora.sequences import TokenBatch
from analysis.errors import CheckpointError, UnsupportedModelError, first_line, not_finite
from analysis.families.base import MoEFamily
from analysis.families.packing import check_packing
from analysis.model.forwards import (
    Forward,
    Wrapper,
    decoder_layers,
    input_device,
    instead,
    wrap_forward,
)
from analysis.model.moe_model import MoEModel
from analysis.numbers.arrays import BoolArray

_LOGIT_ELEMENTS = 1 << 25  # of the vocabulary at once, as float32 128 MiB


def backward_options(batch_size: int) -> str:
    """What makes the activations that backward needs fewer, as options of the command line."""
    fewer = "a smaller --batch-size, " if batch_size > 1 else ""
    return f"{fewer}a shorter --seq-len, or --checkpoint-activations"


def prepare(model: PreTrainedModel, batch: TokenBatch) -> dict[str, Tensor | None]:
    """Describe the positions of the next forward to `collecting`; returns the forward's inputs."""
    if batch.positions is not None:
        check_config(model.config)
    device = input_device(model)
    counted = None if batch.counted.all() else torch.from_numpy(batch.counted).to(device)
    shard = torch.from_numpy(batch.token_shard).to(device)
    sample = torch.arange(batch.first, batch.first + len(shard), device=device)
    batch_mask(counted, shard, sample[:, None].expand_as(shard))
    return model_inputs(batch, device)


def feed(model: PreTrainedModel, batch: TokenBatch) -> None:
    """Run the model on a batch, without its head: the last layer completes the statistics."""
    with one_dtype(model):
        model.base_model(**prepare(model, batch), use_cache=False)


def run_trunk(model: PreTrainedModel, batch: TokenBatch) -> Tensor:
    """(B, L, D) hidden states after the last norm; collects nothing."""
    with one_dtype(model):
        output = model.base_model(**model_inputs(batch, input_device(model)), use_cache=False)
    hidden_BLD: Tensor = output.last_hidden_state
    return hidden_BLD


@contextmanager
def one_dtype(model: PreTrainedModel) -> Iterator[None]:
    """Says it in one line where transformers' own code mixes dtypes, as some does in float16."""
    try:
        yield
    except RuntimeError as error:
        if "same dtype" not in str(error):
            raise
        name = str(model.config.dtype).removeprefix("torch.")
        raise UnsupportedModelError(
            f"{type(model).__name__} of transformers does not compute in {name} "
            f"({first_line(error)}); choose another --dtype, such as bfloat16 or float32."
        ) from error


def model_inputs(batch: TokenBatch, device: torch.device) -> dict[str, Tensor | None]:
    """Inputs of a model's forward for a batch; call it with `use_cache=False`.

    transformers separates packed documents by their positions, but only without a mask and a
    cache. Padding then needs no mask: its positions are all 0, so each is its own document.
    """
    ids = torch.from_numpy(batch.input_ids).to(device)
    if batch.positions is not None:
        positions = torch.from_numpy(batch.positions).to(device)
        return {"input_ids": ids, "attention_mask": None, "position_ids": positions}
    if batch.mask.all():
        return {"input_ids": ids, "attention_mask": None}
    mask = torch.from_numpy(batch.mask).to(device=device, dtype=torch.int64)
    return {"input_ids": ids, "attention_mask": mask}


def check_config(config: PreTrainedConfig, attention: str = "auto") -> None:
    """Refuse packed documents where a model of this configuration would let them see each other."""
    text = config.get_text_config()
    kinds = getattr(text, "layer_types", None) or ()
    implementation = getattr(config, "_attn_implementation", None)
    check_packing(text.model_type, kinds, implementation if attention == "auto" else attention)


def check_model_packs(model: MoEModel, attention: str = "auto") -> None:
    """As `check_config`, before the model is loaded, if its configuration is enough to tell."""
    try:
        config = AutoConfig.from_pretrained(model.checkpoint.path, trust_remote_code=False)
    except ValueError:
        return  # an architecture that transformers does not know; loading reports it
    except LOADING_ERRORS as error:
        raise load_error(model, error) from error
    check_config(config, attention)


def predicted(batch: TokenBatch) -> BoolArray:
    """(B, L - 1) bool: True at positions whose next token is in the loss.

    That token must count and not be the first of its document: packed documents do not see what
    precedes them.
    """
    mask = batch.counted[:, 1:].copy()
    if batch.positions is not None:
        mask &= batch.positions[:, 1:] != 0
    return mask


def feed_backward(model: PreTrainedModel, batch: TokenBatch) -> None:
    """Run the model on a batch, then backward from its loss."""
    with with_graph(model, batch):
        run_backward(model, batch, model.base_model(**prepare(model, batch), use_cache=False))


def run_backward(model: PreTrainedModel, batch: TokenBatch, output: Any) -> None:
    """Backward from the loss of a batch; `output` is what the trunk gave."""
    hidden_BLD: Tensor = output.last_hidden_state
    mask = torch.from_numpy(predicted(batch)).to(hidden_BLD.device)
    if not mask.any():
        return  # the activations are summed already, and no loss depends on them
    hidden_RD = hidden_BLD[:, :-1][mask]
    targets_R = torch.from_numpy(batch.input_ids[:, 1:]).to(hidden_BLD.device)[mask]
    gradient_RD = _loss_gradient(model, output, hidden_RD.detach(), targets_R)
    torch.autograd.backward([hidden_RD], [gradient_RD])


@contextmanager
def with_graph(model: PreTrainedModel, batch: TokenBatch) -> Iterator[None]:
    """Inside, activations are kept for backward; says it in one line if they do not fit."""
    try:
        with torch.enable_grad(), one_dtype(model):
            yield
    except RuntimeError as error:  # torch.OutOfMemoryError among them
        if not lacks_memory(error):
            raise
        sequences, length = batch.mask.shape
        raise CheckpointError(
            f"The activations that backward needs for {sequences} sequences of {length} tokens do "
            f"not fit into memory; try {backward_options(sequences)}."
        ) from error


def _loss_gradient(
    model: PreTrainedModel, output: Any, hidden_RD: Tensor, targets_R: Tensor
) -> Tensor:
    """dloss/dhidden, a block of positions at a time: logits are large."""
    rows = max(1, _LOGIT_ELEMENTS // int(model.config.get_text_config().vocab_size))
    gradients: list[Tensor] = []
    parts = zip(torch.split(hidden_RD, rows), torch.split(targets_R, rows), strict=True)
    for part_RD, part_R in parts:
        leaf_RD = part_RD.requires_grad_()
        states = type(output)(last_hidden_state=leaf_RD[None])
        logits_RV = run_head(model, instead(states))[0]
        wide = torch.promote_types(logits_RV.dtype, torch.float32)
        device = logits_RV.device
        loss = functional.cross_entropy(logits_RV.to(wide), part_R.to(device), reduction="sum")
        if not loss.isfinite():
            raise not_finite("The loss has", hidden_RD.dtype)
        gradients += torch.autograd.grad(loss, leaf_RD)
    return torch.cat(gradients)


def run_head(model: PreTrainedModel, trunk: Wrapper) -> Tensor:
    """Logits by the model's own forward, as some scale or cap them, with another trunk inside."""
    with ExitStack() as restore:
        wrap_forward(model.base_model, trunk, restore)
        token = torch.zeros((1, 1), dtype=torch.int64, device=input_device(model))
        logits: Tensor = model(input_ids=token, use_cache=False).logits
    return logits


@contextmanager
def checkpointed(model: nn.Module, family: MoEFamily) -> Iterator[None]:
    """While open, each decoder layer keeps only its input and is recomputed in backward.

    transformers' own switch works in training mode only, where some routers draw random numbers.
    """

    def recomputed(inner: Forward) -> Forward:
        return partial(checkpoint, inner, use_reentrant=False, preserve_rng_state=False)

    with ExitStack() as restore:
        for layer in decoder_layers(model, family):
            wrap_forward(layer, recomputed, restore)
        yield
