"""The group `damage`: how much a layer's output changes when an expert is removed.

D_j = sum over the tokens routed to j of || y_t - y_t^(-j) ||_2, where y^(-j) is the output of a
router that never had j (arXiv:2606.15716, Eq. 5-8). The only extra work is to run the experts that
replace a removed one: one expert per token if the router keeps the order of the others.

Shape suffixes as in `experts`, and P routed pairs of tokens that count, Q experts per token with
one removed, X entering experts of a token, U = K + X.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from analysis.calibration.removal import Without

_CHUNK = 64  # tokens whose differences are in memory at once


@dataclass(frozen=True, slots=True, eq=False)
class Rerouting:
    """What a router would have chosen without each of the experts that it did choose."""

    ids_TK: Tensor  # as the router returned them, like the gate weights
    gates_TK: Tensor
    token_P: Tensor  # of each routed pair that counts: the token,
    place_P: Tensor  # and the expert's position among the token's
    ids_PQ: Tensor  # experts of that token without that expert, and their gate weights
    gates_PQ: Tensor


@torch.no_grad()
def reroute(
    routed: tuple[Tensor, ...], without: Without, num_experts: int, mask_T: Tensor | None
) -> Rerouting:
    """The router's choice without each expert, on the tokens that chose that expert.

    `routed` is the router's output, which ends with gate weights (T, K) and ids (T, K). `mask_T`
    is True at tokens that count; None means all.
    """
    *_, gates_TK, ids_TK = routed
    places = ids_TK.shape[-1]
    expert_S, order_S = torch.sort(ids_TK.reshape(-1), stable=True)
    if mask_T is not None:
        counts_S = mask_T[order_S // places]
        expert_S, order_S = expert_S[counts_S], order_S[counts_S]
    counts = torch.bincount(expert_S, minlength=num_experts).tolist()
    token_P = order_S // places
    answers, start = [], 0
    for expert, count in enumerate(counts):
        if count and num_experts > 1:
            answers.append(without(expert, token_P[start : start + count]))
        start += count
    # Without its only expert a layer has no choice.
    no_choice = (ids_TK.new_zeros(len(token_P), 0), gates_TK.new_zeros(len(token_P), 0))
    ids_PQ, gates_PQ = map(torch.cat, zip(*answers, strict=True)) if answers else no_choice
    return Rerouting(ids_TK, gates_TK, token_P, order_S % places, ids_PQ, gates_PQ)


class Scratch:
    """A reused buffer: allocating memory costs more than writing to it."""

    def __init__(self) -> None:
        self._flat: Tensor | None = None

    def take(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """An uninitialised tensor of this shape; valid until the next call."""
        size = math.prod(shape)
        flat = self._flat
        is_alike = flat is not None and (flat.dtype, flat.device) == (like.dtype, like.device)
        if flat is None or not is_alike or len(flat) < size:
            flat = self._flat = like.new_empty(size)
        return flat[:size].view(shape)


class LayerDamage:
    """Output differences of one layer on one batch.

    y_t - y_t^(-j) is a linear combination of the outputs of the token's experts and of the entering
    ones; this keeps those outputs (T, U, D) and the coefficients of each pair.
    """

    def __init__(self, rerouted: Rerouting, num_experts: int, scratch: Scratch) -> None:
        self._rerouted = rerouted
        self._scratch = scratch
        tokens, places = rerouted.ids_TK.shape
        everywhere_TU = torch.arange(places, device=rerouted.ids_TK.device).expand(tokens, -1)
        # Place of each expert among the outputs kept for a token; -1 if its output is not needed.
        place_TE = rerouted.ids_TK.new_full((tokens, num_experts), -1)
        place_TE.scatter_(1, rerouted.ids_TK, everywhere_TU)
        named_TE = torch.zeros_like(place_TE, dtype=torch.bool)
        named_TE[rerouted.token_P[:, None], rerouted.ids_PQ] = True
        enters_TE = named_TE & (place_TE < 0)
        order_TE = enters_TE.cumsum(dim=1) + places - 1
        self._place_TE = torch.where(enters_TE, order_TE, place_TE)
        self._used_T = enters_TE.sum(dim=1) + places
        self.num_entering = int(enters_TE.sum())
        self._width = int(self._used_T.max()) if tokens else places
        expert_X, token_X = enters_TE.T.nonzero(as_tuple=True)
        counts = torch.bincount(expert_X, minlength=num_experts).tolist()
        self._entering = torch.split(token_X, counts)
        self._outputs_TUD: Tensor | None = None

    def is_of(self, ids_TK: Tensor, gates_TK: Tensor) -> bool:
        """Whether these are the ids and gate weights that the router returned."""
        own_gates, other_gates = self._rerouted.gates_TK.double(), gates_TK.double()
        # Padding may hold NaN.
        is_same = torch.allclose(own_gates, other_gates, rtol=0.0, atol=0.0, equal_nan=True)
        return torch.equal(self._rerouted.ids_TK, ids_TK) and is_same

    def entering(self, expert: int) -> Tensor:
        """Tokens that need this expert's output although they did not choose it."""
        return self._entering[expert]

    @torch.no_grad()
    def keep(self, expert: int, token_R: Tensor, f_RD: Tensor) -> None:
        """Keep outputs of one expert, before the gate weight."""
        if self._outputs_TUD is None:
            shape = (len(self._place_TE), self._width, f_RD.shape[-1])
            self._outputs_TUD = self._scratch.take(shape, f_RD)
            place_U = torch.arange(self._width, device=f_RD.device)
            unused_TU = place_U >= self._used_T[:, None]
            if unused_TU.any():
                # Their coefficients are 0, but the buffer may hold NaN.
                self._outputs_TUD[unused_TU] = 0.0
        at_R = token_R * self._width + self._place_TE[token_R, expert]
        self._outputs_TUD.view(-1, f_RD.shape[-1]).index_copy_(0, at_R, f_RD)

    @cached_property
    def _coefficients_TKU(self) -> Tensor:
        """Of each output in each pair's difference: gate weight with the expert minus without."""
        rerouted = self._rerouted
        tokens, places = rerouted.ids_TK.shape
        wide = torch.promote_types(rerouted.gates_TK.dtype, torch.float32)
        coefficients = torch.zeros(
            tokens, places, self._width, dtype=wide, device=rerouted.gates_TK.device
        )
        coefficients[:, :, :places] = rerouted.gates_TK.to(wide)[:, None, :]
        place_PQ = self._place_TE[rerouted.token_P[:, None], rerouted.ids_PQ]
        at = (rerouted.token_P[:, None], rerouted.place_P[:, None], place_PQ)
        coefficients[at] -= rerouted.gates_PQ.to(wide)
        return coefficients

    @torch.no_grad()
    def norms(self) -> Tensor:
        """(T, K) float64: || y_t - y_t^(-j) || of each pair; meaningless for pairs not counted."""
        if self._outputs_TUD is None:
            return torch.zeros(self._rerouted.ids_TK.shape, dtype=torch.float64)
        wide = torch.promote_types(self._outputs_TUD.dtype, self._coefficients_TKU.dtype)
        norms = [
            torch.linalg.vector_norm(
                torch.bmm(coefficients.to(wide), outputs.to(wide)), dim=-1
            ).double()
            for coefficients, outputs in zip(
                torch.split(self._coefficients_TKU, _CHUNK),
                torch.split(self._outputs_TUD, _CHUNK),
                strict=True,
            )
        ]
        return torch.cat(norms)
