"""Runs a text through the original model and plans: losses of its tokens, and the experts used.

Shape suffixes: T tokens, K experts per token, N scored tokens, D model width, V vocabulary.
"""

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from analysis.calibration.feed import run_trunk
from analysis.corpora.sequences import TokenSequences
from analysis.corpora.tokens import Tokenizer
from analysis.errors import UnsupportedModelError, not_finite
from analysis.model.forwards import Forward, wrap_forward
from analysis.model.moe_model import MoEModel
from analysis.model.routing import find_block
from analysis.numbers.arrays import FloatArray
from analysis.progress import Progress
from pruning.engine.candidate import candidate_of
from pruning.engine.full_side import OutputHead
from pruning.measures.positions import log_probabilities
from pruning.plan.plan import PruningPlan
from pruning.records.lens import LensLayer, LensRecord, lens_plan

LOOKING = "looking through the lens"  # phase
_DIGITS = 5  # decimals of losses and gates
_CONTEXT = 8  # tokens before one that its text may depend on
_BROKEN = "\ufffd"  # decoders write it for a part of a character
# Layer -> (T, K) experts and their gate weights.
Chosen = dict[int, tuple[Tensor, Tensor]]


def token_texts(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """The text of each token, as it stands among the others.

    A character of several tokens belongs to the last of them; the others are empty.
    """
    texts, begun = [], 0
    for place in range(len(ids)):
        # Decoders treat the first of their tokens differently, so some stand before it.
        first = max(0, begun - _CONTEXT)
        before = tokenizer.decode(ids[first:begun], skip_special_tokens=False)
        text = tokenizer.decode(ids[first : place + 1], skip_special_tokens=False)[len(before) :]
        is_part = text.endswith(_BROKEN) and place + 1 < len(ids) and place - begun < _CONTEXT
        texts.append("" if is_part else text)
        begun = begun if is_part else place + 1
    return texts


@contextmanager
def choices_heard(model: PreTrainedModel, described: MoEModel) -> Iterator[Chosen]:
    """While open, the experts that each forward chooses, and their gate weights, by layer."""
    chosen: Chosen = {}

    def hear(layer: int, inner: Forward) -> Forward:
        def forward(hidden: Tensor, index_TK: Tensor, weights_TK: Tensor, *more: Any) -> Any:
            chosen[layer] = index_TK.detach().cpu(), weights_TK.detach().double().cpu()
            return inner(hidden, index_TK, weights_TK, *more)

        return forward

    with ExitStack() as restore:
        for layer in described.layers:
            block = find_block(model, described.family, layer.index)
            experts = None if block is None else block.get_submodule("experts")
            if experts is None or not hasattr(experts, "has_gate"):
                raise UnsupportedModelError(
                    f"The experts of {described.family.label} in layer {layer.index} do not use "
                    "transformers' experts interface, so a lens cannot tell which were used."
                )
            wrap_forward(experts, partial(hear, layer.index), restore)
        yield chosen


def run_lens(
    model: PreTrainedModel,
    described: MoEModel,
    plans: Iterable[PruningPlan],
    record: LensRecord,
) -> Generator[Progress, None, LensRecord]:
    """The record with the original model and these plans; what it has already is not run again."""
    missing = [plan for plan in plans if not record.of_plan(plan.digest)]
    total = len(missing) + 1
    yield Progress(LOOKING, 0, total, "models")
    if not record.losses:
        losses, chosen = _run(model, described, None, record)
        record = record.finished(
            {}, losses=tuple(losses.tolist()), layers=_layers(described, chosen)
        )
    for done, plan in enumerate(missing, start=1):
        yield Progress(LOOKING, done, total, "models")
        losses, chosen = _run(model, described, plan, record)
        ids = {layer: index_TK.flatten().tolist() for layer, (index_TK, _) in chosen.items()}
        record = record.with_plan(lens_plan(described, plan, losses, ids))
    yield Progress(LOOKING, total, total, "models")
    return record


def _layers(described: MoEModel, chosen: Chosen) -> tuple[LensLayer, ...]:
    layers = []
    for layer in described.layers:
        index_TK, weights_TK = chosen[layer.index]
        order_TK = weights_TK.argsort(dim=-1, descending=True, stable=True)
        layers.append(
            LensLayer(
                layer=layer.index,
                num_experts=layer.num_experts,
                top_k=index_TK.shape[-1],
                experts=tuple(index_TK.gather(-1, order_TK).flatten().tolist()),
                gates=tuple(
                    np.round(weights_TK.gather(-1, order_TK).flatten().numpy(), _DIGITS).tolist()
                ),
            )
        )
    return tuple(layers)


def _run(
    model: PreTrainedModel,
    described: MoEModel,
    plan: PruningPlan | None,
    record: LensRecord,
) -> tuple[FloatArray, Chosen]:
    """(N,) losses of the scored tokens in nats, and what each layer chose for every token."""
    rows = (np.asarray(record.ids, dtype=np.int32),)
    (batch,) = TokenSequences("", rows, 1, 0).batches(1)
    with (
        torch.no_grad(),
        candidate_of(model, described.family, plan),
        choices_heard(model, described) as chosen,
    ):
        hidden_ND = run_trunk(model, batch)[0, record.scored_from - 1 : -1]
    targets_N = torch.tensor(record.ids[record.scored_from :])
    head, parts = OutputHead(model), []
    for start in range(0, len(hidden_ND), head.rows):
        part = slice(start, start + head.rows)
        log_NV = log_probabilities(head(hidden_ND[part]))
        index_N1 = targets_N[part, None].to(log_NV.device)
        parts.append(-log_NV.gather(1, index_N1).squeeze(1).double().cpu())
    losses_N = torch.cat(parts)
    if not losses_N.isfinite().all():
        raise not_finite("The loss has", hidden_ND.dtype)
    return np.round(losses_N.numpy(), _DIGITS), chosen
