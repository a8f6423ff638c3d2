"""The group `dense`: every expert on every token, summed for each sample (MoE Pathfinder, Eq. 2-7).

The layer's output is the routed one as always. Beside it, each expert is run on all tokens in
blocks of rows, so memory does not grow with the number of experts: one block of outputs at a time.
How often tokens really go from an expert on to one of the next layer is counted too, over all
samples together: a square of experts for each sample would not be bounded.
Shape suffixes as in `experts`, and N samples, R rows of a block, C tokens that count.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from analysis.calibration.router_group import one_hot, pair_counts
from analysis.calibration.sums import GroupSums
from analysis.errors import not_finite

_ROWS = 1024
# (expert, inputs (R, D)) -> its outputs (R, D), before any gate weight.
ExpertForward = Callable[[int, Tensor], Tensor]


class LayerDense:
    """What one batch adds for one layer.

    `sample_T` is the sample of each token; `mask_T` True at tokens that count, None: all of them.
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
        # The batch, by its first sample: what its tokens chose is looked up in the next layer.
        self._batch = int(sample_T[0])
        everyone_T = torch.arange(len(sample_T), device=device)
        self._token_C = everyone_T if mask_T is None else everyone_T[mask_T.to(device)]
        self._sample_C = sample_T[self._token_C]

    @torch.no_grad()
    def add_router(self, logits_TE: Tensor) -> None:
        """Add the softmax over all logits, also where the router scores by sigmoids."""
        logits_TE = logits_TE.reshape(-1, logits_TE.shape[-1])[self._token_C]
        probability_CE = torch.softmax(logits_TE, dim=-1, dtype=torch.float64)
        self._of("dense_probability").index_add_(0, self._sample_C, probability_CE)

    @torch.no_grad()
    def add_choice(self, ids_TK: Tensor) -> None:
        """Count the pairs of what each token chose in the sparse layer before and chooses here.

        Layers run in order, but where layers are streamed all batches pass through one before any
        reaches the next: what each batch chose is kept until then, four bytes a choice.
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
    def add_experts(self, run: ExpertForward, hidden_TD: Tensor, routed_TD: Tensor) -> None:
        """Add ||f||_2 and ||Y - f||^2 of all experts on tokens that count; `routed_TD` is Y."""
        activation_NE, loss_NE = self._of("dense_activation"), self._of("dense_loss")
        for start in range(0, len(self._token_C), _ROWS):
            token_R = self._token_C[start : start + _ROWS]
            sample_R = self._sample_C[start : start + _ROWS]
            hidden_RD, routed_RD = hidden_TD[token_R], routed_TD[token_R].double()
            for expert in range(activation_NE.shape[1]):
                f_RD = run(expert, hidden_RD).double()
                norms_R = torch.linalg.vector_norm(f_RD, dim=-1)
                if not norms_R.isfinite().all():
                    where = f"Expert {expert} of layer {self._layer} gave"
                    raise not_finite(where, hidden_TD.dtype)
                activation_NE[:, expert].index_add_(0, sample_R, norms_R)
                losses_R = (routed_RD - f_RD).square_().sum(dim=-1)
                loss_NE[:, expert].index_add_(0, sample_R, losses_R)
        counted_N = torch.bincount(self._sample_C, minlength=len(activation_NE))
        self._of("dense_tokens").add_(counted_N)

    def _of(self, name: str) -> Tensor:
        return self._sums.of(name, self._layer, self._device)
