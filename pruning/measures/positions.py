"""Measures at single positions: the candidate's next-token distribution against the original's.

p is the distribution of the original model and q that of the candidate, after the same text
(teacher forcing). Softmax in float32, sums over the vocabulary in float64. See arXiv:2603.06003,
section 3.4.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

# Bytes of float32 logits per chunk; about eight tensors of that size are alive at a time.
CHUNK_BYTES = 64 << 20


def rows_of(vocabulary: int) -> int:
    """Positions per chunk of logits over so many tokens."""
    return max(1, CHUNK_BYTES // (4 * vocabulary))


@dataclass(frozen=True, slots=True, eq=False)
class Positions:
    """The two distributions at some positions (N of them, over V tokens)."""

    full_NV: Tensor  # log p
    candidate_NV: Tensor  # log q
    targets_N: Tensor  # ids of the tokens that follow in the text
    uniforms_N: Tensor  # from [0, 1), the random numbers of `sap`


def log_probabilities(logits_NV: Tensor) -> Tensor:
    """Log-softmax over the vocabulary in float32, or in float64 if the model computes so."""
    return logits_NV.to(torch.promote_types(logits_NV.dtype, torch.float32)).log_softmax(-1)


def esap(at: Positions) -> Tensor:
    """(N,) sum_v min(p, q), in [0, 1]; 1 if both agree (arXiv:2603.06003, Eq. 14).

    Computed as 1 - TV (Eq. 17), so that equal distributions get exactly 1 despite rounding.
    """
    distance = (at.full_NV.exp() - at.candidate_NV.exp()).abs().sum(-1, dtype=torch.float64)
    return (1 - distance / 2).clamp(0, 1)


def sap(at: Positions) -> Tensor:
    """(N,) min(1, p(y) / q(y)) for one draw y ~ q (arXiv:2603.06003, Eq. 9)."""
    cumulated = at.candidate_NV.double().exp().cumsum(-1)
    # The total is 1 up to rounding; scaled by it, no draw falls beyond the last token.
    thresholds = at.uniforms_N.to(cumulated)[:, None] * cumulated[:, -1:]
    tokens = torch.searchsorted(cumulated, thresholds, right=True).clamp(max=cumulated.shape[1] - 1)
    ratio = at.full_NV.gather(1, tokens) - at.candidate_NV.gather(1, tokens)
    return ratio.squeeze(1).double().exp().clamp(max=1)


def kl(at: Positions) -> Tensor:
    """(N,) KL(p || q) in nats, full against candidate; at least 0."""
    # A token with p = 0 adds nothing, whatever its q.
    terms = torch.where(
        at.full_NV > -torch.inf, at.full_NV.exp() * (at.full_NV - at.candidate_NV), 0
    )
    return terms.sum(-1, dtype=torch.float64).clamp(min=0)


def nll(at: Positions) -> Tensor:
    """(N,) -log q of the next token of the text, in nats."""
    return _loss(at.candidate_NV, at.targets_N)


def full_nll(at: Positions) -> Tensor:
    """(N,) -log p of the next token of the text, in nats."""
    return _loss(at.full_NV, at.targets_N)


def _loss(log_NV: Tensor, targets_N: Tensor) -> Tensor:
    return -log_NV.gather(1, targets_N[:, None]).squeeze(1).double()


POSITION_FUNCTIONS: Mapping[str, Callable[[Positions], Tensor]] = {
    "esap": esap,
    "sap": sap,
    "kl": kl,
    "nll": nll,
    "full_nll": full_nll,
}
