"""What the kept experts of a layer do on calibration tokens: observed in the layer's own forward.

Shape suffixes as in `solver`; B sequences of a batch, L their length.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from analysis.calibration.experts import activations, expert_output
from analysis.calibration.recording import route
from analysis.model.forwards import Forward, wrap_forward
from pruning.repair.solver import Rows

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
    routing = route(index_TK, int(experts.num_experts))  # type: ignore[arg-type]
    weights = torch.split(weights_TK.reshape(-1)[routing.order_S], routing.counts)
    tokens = torch.split(routing.token_S, routing.counts)
    output_TD = torch.zeros_like(hidden_TD)
    for expert, (token_R, weight_R) in enumerate(zip(tokens, weights, strict=True)):
        if not len(token_R):
            continue
        a_RM = activations(experts, expert, hidden_TD.index_select(0, token_R))
        added_RD = expert_output(experts, expert, a_RM) * weight_R[:, None]
        output_TD.index_add_(0, token_R, added_RD.to(output_TD.dtype))
        observe(expert, token_R, wide(a_RM) * wide(weight_R)[:, None])
    return output_TD


class Collector:
    """Gathers the rows of one layer, batch by batch, apart for fitting and for judging."""

    def __init__(self, neurons: Mapping[int, Sequence[int] | None]) -> None:
        """`neurons`: kept expert -> its kept neurons, None for all."""
        self._neurons = neurons
        self._scaled: list[dict[int, list[Tensor]]] = [{}, {}]
        self._tokens: list[dict[int, list[Tensor]]] = [{}, {}]
        self._residuals: list[list[Tensor]] = [[], []]
        self._sizes = [0, 0]
        self._part_T = self._place_T = torch.zeros(0, dtype=torch.int64)

    def begin(self, counted_T: Tensor, held_T: Tensor) -> None:
        """Describe the tokens of the next forward: which count, and which only judge."""
        self._part_T = torch.where(counted_T, held_T.long(), -1)
        self._place_T = torch.zeros_like(self._part_T)
        for part in (0, 1):
            inside_T = self._part_T == part
            self._place_T[inside_T] = self._sizes[part] + torch.arange(
                int(inside_T.sum()), device=inside_T.device
            )

    def observe(self, expert: int, token_R: Tensor, scaled_RM: Tensor) -> None:
        """Keep the rows of one expert; neurons that are pruned do nothing."""
        kept = self._neurons[expert]
        if kept is not None:
            mask_M = torch.zeros(scaled_RM.shape[1], dtype=torch.bool, device=scaled_RM.device)
            mask_M[list(kept)] = True
            scaled_RM = scaled_RM.masked_fill(~mask_M, 0)
        for part in (0, 1):
            inside_R = self._part_T[token_R] == part
            self._scaled[part].setdefault(expert, []).append(scaled_RM[inside_R])
            self._tokens[part].setdefault(expert, []).append(self._place_T[token_R[inside_R]])

    def end(self, residual_TD: Tensor) -> None:
        """What the output of these tokens lacks."""
        for part in (0, 1):
            rows_TD = residual_TD[self._part_T == part]
            self._residuals[part].append(rows_TD)
            self._sizes[part] += len(rows_TD)

    def rows(self, down_EDM: Tensor) -> tuple[Rows, Rows]:
        """To fit on, and held out; `down_EDM` are the down projections, for their shape."""
        down_DM = wide(down_EDM[0])
        return self._rows(0, down_DM), self._rows(1, down_DM)

    def _rows(self, part: int, down_DM: Tensor) -> Rows:
        # One of several processes may have no batch, and an expert no token.
        width, neurons = down_DM.shape
        none_R = torch.zeros(0, dtype=torch.int64, device=down_DM.device)
        nothing_RM = down_DM.new_zeros(0, neurons)
        residual_TD = torch.cat([down_DM.new_zeros(0, width), *self._residuals[part]])
        scaled = (self._scaled[part].get(neuron, [nothing_RM]) for neuron in self._neurons)
        tokens = (self._tokens[part].get(neuron, [none_R]) for neuron in self._neurons)
        return Rows(residual_TD, tuple(map(torch.cat, scaled)), tuple(map(torch.cat, tokens)))


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
