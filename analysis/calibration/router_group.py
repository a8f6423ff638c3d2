"""The group `router`: how routers spread their probability, and which experts work together.

Shape suffixes: T tokens, C those that count, K experts per token, E and F experts of two layers or
of one.
"""

import torch
from torch import Tensor

from analysis.calibration.sums import GroupSums
from analysis.errors import not_finite


@torch.no_grad()
def add_router(
    sums: GroupSums, layer: int, routed: tuple[Tensor, ...], mask_T: Tensor | None
) -> None:
    """Add one forward of a router to the sums.

    The probabilities are the softmax over all logits, as MoE Pathfinder defines r, also where the
    router scores by sigmoids and its gates are others; the entropy is theirs, in nats. `routed` is
    what the router returned: logits (T, E) first, ids (T, K) last; `mask_T` is True at tokens that
    count.
    """
    logits_TE, ids_TK = routed[0], routed[-1]
    logits_TE = logits_TE.reshape(-1, logits_TE.shape[-1])
    if mask_T is not None:
        logits_TE, ids_TK = logits_TE[mask_T], ids_TK[mask_T]
    device = logits_TE.device
    wide = torch.promote_types(logits_TE.dtype, torch.float32)
    probability_TE = torch.softmax(logits_TE, dim=-1, dtype=wide)
    sums.of("probabilities", layer, device).add_(probability_TE.sum(dim=0, dtype=torch.float64))
    # Not p log p: a probability that rounds to 0 adds nothing.
    terms_TE = torch.special.xlogy(probability_TE, probability_TE)
    entropy = terms_TE.sum(dtype=torch.float64)
    if not entropy.isfinite():
        raise not_finite(f"The router of layer {layer} gave", logits_TE.dtype)
    sums.of("entropy", layer, device).sub_(entropy)
    sums.of("tokens", layer, device).add_(len(ids_TK))
    # Tokens that selected both experts of a pair; on the diagonal those that selected one.
    coactivation_EE = sums.of("coactivation", layer, device)
    chosen_TE = one_hot(ids_TK, len(coactivation_EE))
    coactivation_EE.add_(pair_counts(chosen_TE, chosen_TE))


def one_hot(ids_CK: Tensor, num_experts: int) -> Tensor:
    """(C, E) float32: 1 where a token chose the expert.

    Ids beyond the last expert stand for experts of another process; they are left out.
    """
    chosen_CE = torch.zeros(len(ids_CK), num_experts + 1, device=ids_CK.device)
    chosen_CE.scatter_(1, ids_CK.long().clamp(max=num_experts), 1.0)
    return chosen_CE[:, :num_experts]


def pair_counts(first_CE: Tensor, second_CF: Tensor) -> Tensor:
    """(E, F) int64: tokens that chose both experts of a pair, from two results of `one_hot`."""
    # float32 counts whole numbers exactly up to 2**24, more tokens than a batch has.
    return (first_CE.T @ second_CF).to(torch.int64)
