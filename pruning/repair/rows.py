"""What the kept experts of a layer do on calibration tokens: observed in the layer's own forward.

Shape suffixes as in `solver`; B sequences of a batch, L their length.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from analysis.calibration.blocks import ExpertsInput
from analysis.calibration.experts import activations, expert_output
from analysis.calibration.recording import route
from analysis.model.forwards import Forward, wrap_forward
from analysis.model.loaded_block import loaded_block
from pruning.repair.batches import Places
from pruning.repair.expert_store import ExpertStore, OfExperts, named
from pruning.repair.solver import Rows, SplitRows

_PARTS = ("fitted", "held")  # names of rows, until all are there
_SAME = 0.05  # of what is added to the routed output, the part that may be lost on its way
# (expert, (R,) its tokens, (R, M) its activations times gate weight) -> None
Observer = Callable[[int, Tensor, Tensor], None]


def wide(values: Tensor) -> Tensor:
    """At least float32."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


@contextmanager
def experts_observed(experts: nn.Module, observe: Observer) -> Iterator[None]:
    """While open, each forward of the experts tells what each one adds, and adds it."""
    with ExitStack() as restore:
        wrap_forward(experts, lambda _: partial(_forward, experts, observe), restore)
        yield


def _forward(
    experts: nn.Module, observe: Observer, hidden_TD: Tensor, index_TK: Tensor, weights_TK: Tensor
) -> Tensor:
    output_TD = torch.zeros_like(hidden_TD)
    given = ExpertsInput(hidden_TD, index_TK, weights_TK)
    add_observed(experts, observe, given, output_TD)
    return output_TD


def add_observed(
    experts: nn.Module, observe: Observer, given: ExpertsInput, output_TD: Tensor
) -> None:
    """Add what the experts give whose weights are in place, and tell."""
    routing = route(given.index_TK, int(experts.num_experts))  # type: ignore[arg-type]
    weights = torch.split(given.weights_TK.reshape(-1)[routing.order_S], routing.counts)
    tokens = torch.split(routing.token_S, routing.counts)
    for place, expert in enumerate(loaded_block(experts)):
        token_R, weight_R = tokens[expert], weights[expert]
        if not len(token_R):
            continue
        a_RM = activations(experts, place, given.hidden_TD.index_select(0, token_R))
        added_RD = expert_output(experts, place, a_RM) * weight_R[:, None]
        output_TD.index_add_(0, token_R, added_RD.to(output_TD.dtype))
        observe(expert, token_R, wide(a_RM) * wide(weight_R)[:, None])


class Collector:
    """Gathers the rows of one layer, batch by batch: those that judge after those fitted on."""

    def __init__(
        self, neurons: Mapping[int, Sequence[int] | None], places: Places, like_NDM: Tensor
    ) -> None:
        """`neurons`: kept expert -> its kept neurons, None for all.

        `like_NDM`: no matrices, of the shape and dtype of an expert's change.
        """
        self._places, (_, width, size) = places, like_NDM.shape
        self._gone: dict[int, Tensor] = {}
        for expert, kept in neurons.items():
            if kept is not None:
                mask_M = torch.ones(size, dtype=torch.bool, device=like_NDM.device)
                mask_M[list(kept)] = False
                self._gone[expert] = mask_M
        self._number = {expert: number for number, expert in enumerate(neurons)}
        self._tokens: list[list[list[Tensor]]] = [[[], []] for _ in neurons]
        self._residual_TD = like_NDM.new_empty(places.num_tokens, width)
        # One of several processes may have no batch, and an expert no token.
        self._nothing_RM = like_NDM.new_empty(0, size)

    def observer(self, batch: int, kept: ExpertStore) -> Observer:
        """Keeps the rows of a batch; neurons that are pruned do nothing."""
        place_T = self._places.of_batches[batch]
        counted_T = place_T >= 0
        held_T = place_T >= self._places.num_fitted
        whole = [bool(counted_T.all()) and bool((held_T == judges).all()) for judges in (0, 1)]

        def observe(expert: int, token_R: Tensor, scaled_RM: Tensor) -> None:
            number = self._number[expert]
            if expert in self._gone:
                scaled_RM = scaled_RM.masked_fill_(self._gone[expert], 0)
            for judges in (0, 1):
                if whole[1 - judges]:
                    continue
                chosen_RM, chosen_R = scaled_RM, token_R
                if not whole[judges]:
                    inside_T = counted_T & (held_T == judges)
                    row_R = inside_T.index_select(0, token_R).nonzero()[:, 0]
                    chosen_RM = scaled_RM.index_select(0, row_R)
                    chosen_R = token_R.index_select(0, row_R)
                kept.add(named(_PARTS[judges], number), chosen_RM)
                self._tokens[number][judges].append(place_T.index_select(0, chosen_R))

        return observe

    def end(self, batch: int, lacking_TD: Tensor) -> None:
        """What the output of the tokens of a batch lacks."""
        place_T = self._places.of_batches[batch]
        counted_T = place_T >= 0
        self._residual_TD[place_T[counted_T]] = lacking_TD[counted_T]

    def rows(self, kept: ExpertStore) -> SplitRows:
        """Of all batches."""
        device = self._residual_TD.device
        none_R = torch.zeros(0, dtype=torch.int64, device=device)
        tokens = []
        for number, parts in enumerate(self._tokens):
            name = named("rows", number)
            kept.add(name, self._nothing_RM)
            for part, chosen in zip(_PARTS, parts, strict=True):
                if chosen:
                    kept.move(named(part, number), name)
            tokens.append(torch.cat([none_R, *parts[0], *parts[1]]))
        scaled = OfExperts(kept, "rows", len(tokens), device)
        rows = Rows(self._residual_TD, scaled, tuple(tokens))
        return SplitRows(rows, self._places.num_fitted)


def stream_factor(experts: nn.Module, run_layer: Callable[[], Tensor]) -> float | None:
    """How much of an addition to the routed output reaches the layer's output, token by token.

    None if it arrives changed, as behind a norm: then the layer's output cannot be the target.
    """
    noise: list[Tensor] = []

    def added(inner: Forward) -> Forward:
        def forward(*args: object, **kwargs: object) -> Tensor:
            output: Tensor = inner(*args, **kwargs)
            generator = torch.Generator().manual_seed(0)
            random = torch.randn(output.shape, generator=generator, dtype=torch.float32)
            noise.append((random * size).to(output))
            return output + noise[0]

        return forward

    before = run_layer()
    size = float(wide(before).square().mean().sqrt())
    with ExitStack() as restore:
        wrap_forward(experts, added, restore)
        after = run_layer()
    change, sent = wide(after) - wide(before), wide(noise[0])
    if change.numel() != sent.numel():
        return None
    change = change.reshape(sent.shape)
    factor = float((change * sent).sum() / sent.square().sum())
    error = float(torch.linalg.vector_norm(change - factor * sent))
    is_same = factor != 0 and error < _SAME * float(torch.linalg.vector_norm(change))
    return float(f"{factor:.3g}") if is_same else None
