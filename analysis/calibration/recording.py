"""Adds what one layer computes in one batch to the sums."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from analysis.calibration.damage import LayerDamage, Rerouting, Scratch
from analysis.calibration.dense import LayerDense
from analysis.calibration.neurons import LayerNeurons
from analysis.calibration.sums import GroupSums
from analysis.errors import UnsupportedModelError, not_finite
from analysis.stats.columns import EXPONENTS, GATES, MOMENT_COLUMNS, moment_column


@dataclass(slots=True)
class Collection:
    """What the experts function needs while collecting."""

    layer_of: Mapping[nn.Module, int]  # decoder index of each experts module
    sums: GroupSums
    # Of each token of the current batch: whether it counts (None: all do), its shard (None: the
    # first), and its sample, for the group `dense`.
    mask_T: Tensor | None = None
    shard_T: Tensor | None = None
    sample_T: Tensor | None = None
    rerouted: dict[int, Rerouting] = field(default_factory=dict)  # by layer, until its experts run
    scratch: Scratch = field(default_factory=Scratch)  # reused by all layers
    squares: dict[tuple[int, int], Tensor] = field(default_factory=dict)  # see `LayerNeurons`


def _moments(weights_TK: Tensor, order_S: Tensor, norms_S: Tensor) -> Tensor:
    """(S, M) float64: the terms of MOMENT_COLUMNS for each routed pair, in sorted order."""
    weights = weights_TK.double()
    total = weights.sum(dim=-1, keepdim=True)
    gates = {"applied": weights, "renormalized": torch.where(total == 0, 0.0, weights / total)}
    powers = {beta: norms_S**beta for beta in EXPONENTS}
    terms: dict[str, Tensor] = {}
    for gate in GATES:
        gates_S = gates[gate].reshape(-1)[order_S]
        for alpha in EXPONENTS:
            for beta in EXPONENTS:
                terms[moment_column(alpha, beta, gate)] = gates_S**alpha * powers[beta]
    return torch.stack([terms[column] for column in MOMENT_COLUMNS], dim=-1)


@dataclass(frozen=True, slots=True)
class RoutedPairs:
    """Pairs of a token and one of its experts, sorted by expert, by token within an expert."""

    expert_S: Tensor
    token_S: Tensor
    order_S: Tensor  # position of each pair in the flattened (T, K) arrays
    counts: list[int]  # pairs of each expert


def route(index_TK: Tensor, num_experts: int) -> RoutedPairs:
    """Sort the (T, K) selected ids by expert.

    Within an expert, pairs are sorted by top-k place, then by token, as in transformers' loop: some
    kernels round a row differently by its place in the matrix.
    """
    tokens, places = index_TK.shape
    expert_S, order_S = torch.sort(index_TK.T.reshape(-1), stable=True)
    counts = torch.bincount(expert_S, minlength=num_experts).tolist()
    token_S, place_S = order_S % tokens, order_S // tokens
    return RoutedPairs(expert_S, token_S, token_S * places + place_S, counts)


def layer_dense(collection: Collection, layer: int, device: torch.device) -> LayerDense:
    """One layer's share of a batch in the group `dense`."""
    if collection.sample_T is None:
        raise ValueError("the group dense needs the sample of each token, see batch_mask")
    return LayerDense(collection.sums, layer, device, collection.sample_T, collection.mask_T)


class Recorder:
    """Adds what one layer computes in one batch to the sums, outside of any gradient.

    `routing` has the routed pairs in the order of their outputs.
    """

    def __init__(self, collection: Collection, layer: int, routing: RoutedPairs) -> None:
        self._sums = collection.sums
        self._layer = layer
        self._routing = routing
        self._device = routing.token_S.device
        self._mask_T = _to_device(collection.mask_T, self._device)
        self._mask_S = None if self._mask_T is None else self._mask_T[routing.token_S]
        shard_T = _to_device(collection.shard_T, self._device)
        self._shard_S: Tensor | int = 0 if shard_T is None else shard_T[routing.token_S]
        self._vectors_ED = self._sums.of("vectors", layer, self._device)
        self._norms_S = torch.zeros(len(routing.token_S), dtype=torch.float64, device=self._device)
        self._largest_S = torch.zeros_like(self._norms_S)
        rerouted = collection.rerouted.pop(layer, None)
        self.damage = None
        if rerouted is not None:
            self.damage = LayerDamage(rerouted, len(self._vectors_ED), collection.scratch)
        is_dense = "dense" in self._sums.groups
        self.dense = layer_dense(collection, layer, self._device) if is_dense else None
        self.neurons = None
        if "gradient" in self._sums.groups:
            self.neurons = LayerNeurons(
                self._sums, layer, self._device, self._mask_S, collection.squares
            )

    @torch.no_grad()
    def add(self, expert: int, span: slice, f_RD: Tensor) -> None:
        """Add the outputs of one expert on its own tokens: norms, largest value, vector sum."""
        wide = torch.promote_types(f_RD.dtype, torch.float32)
        self._norms_S[span] = torch.linalg.vector_norm(f_RD, dim=-1, dtype=wide).double()
        # Four times as fast as the norm of infinite order on a CPU.
        self._largest_S[span] = f_RD.abs().amax(dim=-1).double()
        real_RD = f_RD if self._mask_S is None else f_RD[self._mask_S[span]]
        self._vectors_ED[expert] += real_RD.sum(dim=0, dtype=torch.float64)

    @torch.no_grad()
    def close(self, index_TK: Tensor, weights_TK: Tensor, hidden_TD: Tensor) -> None:
        """The fifteen sums of every expert, its largest output, and its damage.

        `hidden_TD` is the experts' input.
        """
        self._check_outputs(hidden_TD)
        # Before the damage, whose comparison of gates a NaN would fail.
        bad_T = ~weights_TK.isfinite().all(dim=-1)
        if (bad_T if self._mask_T is None else bad_T & self._mask_T).any():
            raise not_finite(f"The router of layer {self._layer} gave", hidden_TD.dtype)
        self._add("moments", _moments(weights_TK, self._routing.order_S, self._norms_S))
        self._keep_largest()
        if "damage" in self._sums.groups:
            if not (self.damage and self.damage.is_of(index_TK, weights_TK)):
                raise UnsupportedModelError(
                    f"The experts of layer {self._layer} do not receive the router's output, so "
                    "their damage is unknown; leave out the group damage."
                )
            self._add("damage", self.damage.norms().reshape(-1)[self._routing.order_S])
            counted = len(weights_TK) if self._mask_T is None else int(self._mask_T.sum())
            self._sums.of("extra", self._layer, self._device).add_(self.damage.num_entering)
            self._sums.of("counted", self._layer, self._device).add_(counted)

    def _add(self, name: str, terms: Tensor) -> None:
        """Add one term of each pair to its expert's sum in its token's shard."""
        if self._mask_S is not None:
            # Filled, not multiplied: padding may overflow.
            counted = self._mask_S.reshape(-1, *(1 for _ in terms.shape[1:]))
            terms = terms.masked_fill(~counted, 0.0)
        sums = self._sums.of(name, self._layer, self._device)
        row_S = self._routing.expert_S + self._shard_S * sums.shape[1]
        sums.view(-1, *sums.shape[2:]).index_add_(0, row_S, terms)

    def _keep_largest(self) -> None:
        largest_S = self._largest_S
        if self._mask_S is not None:
            largest_S = largest_S.masked_fill(~self._mask_S, 0.0)
        largest_E = self._sums.of("largest", self._layer, self._device)
        largest_E.scatter_reduce_(0, self._routing.expert_S, largest_S, "amax")

    def _check_outputs(self, hidden_TD: Tensor) -> None:
        bad_S = ~self._norms_S.isfinite()
        if self._mask_S is not None:
            bad_S &= self._mask_S
        if not bad_S.any():
            return
        pair = int(bad_S.nonzero()[0])
        expert, token = int(self._routing.expert_S[pair]), int(self._routing.token_S[pair])
        is_input_finite = hidden_TD[token].isfinite().all()
        expert_source = f"Expert {expert} of layer {self._layer} gave"
        source = expert_source if is_input_finite else f"Layer {self._layer} received"
        raise not_finite(source, hidden_TD.dtype)


def _to_device(tensor: Tensor | None, device: torch.device) -> Tensor | None:
    """Move a tensor of the batch to a layer's device, which may be another one."""
    return None if tensor is None else tensor.to(device)
