"""The groups `router` and `dense`: router statistics, and every expert on every token.

`dense` sums for each sample (MoE Pathfinder, Eq. 2-7): besides the routed pass, each expert runs on
all tokens in blocks of rows, so memory does not grow with the number of experts. How often tokens
go from an expert to one of the next layer is counted over all samples together: an experts x
experts table per sample would be unbounded.
Shape suffixes as in `experts`, and N samples, R rows of a block, C tokens that count, E and F
experts of two layers or of one.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from analysis.calibration.sums import GroupSums
from analysis.errors import not_finite

_ROWS = 1024
# (expert, inputs (R, D)) -> its outputs (R, D), before any gate weight.
ExpertForward = Callable[[int, Tensor], Tensor]


@torch.no_grad()
def add_router(
    sums: GroupSums, layer: int, routed: tuple[Tensor, ...], mask_T: Tensor | None
) -> None:
    """Add one forward of a router to the sums.

    Probabilities are the softmax over all logits, as MoE Pathfinder defines r, even if the router
    scores by sigmoids; entropy is theirs, in nats. `routed` is the router's output, with logits
    (T, E) first and ids (T, K) last; `mask_T` is True at tokens that count.
    """
    logits_TE, ids_TK = routed[0], routed[-1]
    logits_TE = logits_TE.reshape(-1, logits_TE.shape[-1])
    if mask_T is not None:
        logits_TE, ids_TK = logits_TE[mask_T], ids_TK[mask_T]
    device = logits_TE.device
    wide = torch.promote_types(logits_TE.dtype, torch.float32)
    probability_TE = torch.softmax(logits_TE, dim=-1, dtype=wide)
    sums.of("probabilities", layer, device).add_(probability_TE.sum(dim=0, dtype=torch.float64))
    # xlogy: a probability that rounds to 0 adds 0.
    terms_TE = torch.special.xlogy(probability_TE, probability_TE)
    entropy = terms_TE.sum(dtype=torch.float64)
    if not entropy.isfinite():
        raise not_finite(f"The router of layer {layer} gave", logits_TE.dtype)
    sums.of("entropy", layer, device).sub_(entropy)
    sums.of("tokens", layer, device).add_(len(ids_TK))
    # Tokens that selected both experts of a pair; on the diagonal, those that selected the expert.
    coactivation_EE = sums.of("coactivation", layer, device)
    chosen_TE = one_hot(ids_TK, len(coactivation_EE))
    coactivation_EE.add_(pair_counts(chosen_TE, chosen_TE))


def one_hot(ids_CK: Tensor, num_experts: int) -> Tensor:
    """(C, E) float32: 1 where a token chose the expert.

    Ids beyond the last expert belong to another process and are ignored.
    """
    chosen_CE = torch.zeros(len(ids_CK), num_experts + 1, device=ids_CK.device)
    chosen_CE.scatter_(1, ids_CK.long().clamp(max=num_experts), 1.0)
    return chosen_CE[:, :num_experts]


def pair_counts(first_CE: Tensor, second_CF: Tensor) -> Tensor:
    """(E, F) int64: tokens that chose both experts of a pair, from two results of `one_hot`."""
    # float32 is exact up to 2**24, more tokens than a batch has.
    return (first_CE.T @ second_CF).to(torch.int64)


class LayerDense:
    """What one batch adds for one layer.

    `sample_T` is the sample of each token; `mask_T` is True at tokens that count, None means all.
    """

    def __init__(
        self,
        sums: GroupSums,
        layer: int,
        device: torch.device,
        sample_T: Tensor,
        mask_T: Tensor | None,
    ) -> None:
        self._sums = sums
        self._layer = layer
        self._device = device
        sample_T = sample_T.to(device)
        self._batch = int(sample_T[0])  # a batch is known by its first sample
        everyone_T = torch.arange(len(sample_T), device=device)
        self._token_C = everyone_T if mask_T is None else everyone_T[mask_T.to(device)]
        self._sample_C = sample_T[self._token_C]

    @torch.no_grad()
    def add_router(self, logits_TE: Tensor) -> None:
        """Add the softmax over all logits, even if the router scores by sigmoids."""
        logits_TE = logits_TE.reshape(-1, logits_TE.shape[-1])[self._token_C]
        probability_CE = torch.softmax(logits_TE, dim=-1, dtype=torch.float64)
        self._of("dense_probability").index_add_(0, self._sample_C, probability_CE)

    @torch.no_grad()
    def add_choice(self, ids_TK: Tensor) -> None:
        """Count, per token, the pairs of an expert of the previous sparse layer and one of this.

        Streamed runs put all batches through a layer before the next one, so the choices of each
        batch are kept until then, at four bytes a choice.
        """
        ids_CK = ids_TK.reshape(-1, ids_TK.shape[-1])[self._token_C]
        before_CK = self._sums.chosen.pop(self._batch, None)
        if self._layer != self._sums.order[0]:
            if before_CK is None:
                raise ValueError(f"layer {self._layer} ran before the one before it")
            counts_EF = self._of("transitions")
            before_CE = one_hot(before_CK.to(self._device), counts_EF.shape[0])
            counts_EF.add_(pair_counts(before_CE, one_hot(ids_CK, counts_EF.shape[1])))
        if self._layer != self._sums.order[-1]:
            self._sums.chosen[self._batch] = ids_CK.to(device="cpu", dtype=torch.int32)

    @torch.no_grad()
    def add_experts(
        self, run: ExpertForward, experts: range, hidden_TD: Tensor, routed_TD: Tensor
    ) -> None:
        """Add ||f||_2 and ||Y - f||^2 of some experts on counted tokens; `routed_TD` is Y."""
        activation_NE, loss_NE = self._of("dense_activation"), self._of("dense_loss")
        for start in range(0, len(self._token_C), _ROWS):
            token_R = self._token_C[start : start + _ROWS]
            sample_R = self._sample_C[start : start + _ROWS]
            hidden_RD, routed_RD = hidden_TD[token_R], routed_TD[token_R].double()
            for expert in experts:
                f_RD = run(expert, hidden_RD).double()
                norms_R = torch.linalg.vector_norm(f_RD, dim=-1)
                if not norms_R.isfinite().all():
                    source = f"Expert {expert} of layer {self._layer} gave"
                    raise not_finite(source, hidden_TD.dtype)
                activation_NE[:, expert].index_add_(0, sample_R, norms_R)
                losses_R = (routed_RD - f_RD).square_().sum(dim=-1)
                loss_NE[:, expert].index_add_(0, sample_R, losses_R)
        if not experts.start:
            counted_N = torch.bincount(self._sample_C, minlength=len(activation_NE))
            self._of("dense_tokens").add_(counted_N)

    def _of(self, name: str) -> Tensor:
        return self._sums.of(name, self._layer, self._device)
