"""Which experts tokens chose, as matrices: one row a token, and counts of pairs.

Shape suffixes: C tokens that count, K experts per token, E and F experts of two layers or of one.
"""

import torch
from torch import Tensor


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
