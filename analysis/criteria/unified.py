"""The unified family S_j(b, alpha, beta) (arXiv:2606.15716) and its named members."""

from __future__ import annotations

from functools import cache
from itertools import product

import numpy as np

from analysis.criteria.base import Criterion, numbers
from analysis.lazy import pd
from analysis.numbers.arrays import FloatArray
from analysis.stats.columns import EXPONENTS, Gate, moment_column

REFERENCE = "arXiv:2606.15716, Table 1"
VARIANTS: tuple[tuple[int, int, int], ...] = tuple(product((0, 1), EXPONENTS, EXPONENTS))
RANKABLE = tuple(variant for variant in VARIANTS if variant != (1, 0, 0))

_NAMED = {
    (0, 0, 0): ("frequency", "Frequency"),
    (0, 1, 0): ("seer", "SEER"),
    (0, 0, 1): ("ean", "EAN"),
    (1, 1, 1): ("reap", "REAP"),
    (1, 0, 1): ("man", "MAN"),
    (1, 0, 2): ("msan", "MSAN"),
    (0, 1, 1): ("gate-ean", "Gate-weighted EAN"),
    (0, 2, 2): ("squared-gate-energy", "Squared-gate energy"),
}


def mean_over_routed(total: FloatArray, num_tokens: FloatArray) -> FloatArray:
    """total / num_tokens; 0 for an expert that no token reached."""
    routed = num_tokens > 0
    return np.divide(total, num_tokens, out=np.zeros_like(total), where=routed)


def _factor(symbol: str, exponent: int) -> str:
    return f" {symbol}" + (f"^{exponent}" if exponent > 1 else "") if exponent else ""


@cache
def unified(b: int, alpha: int, beta: int) -> Criterion:
    """The member (b, alpha, beta); higher = keep.

    S_j(b, alpha, beta) = N_j^-b sum_t g^alpha ||f||^beta over the tokens routed to j.
    """
    exponents = (b, alpha, beta)
    name, label = _NAMED.get(exponents, (f"{b},{alpha},{beta}", f"S({b},{alpha},{beta})"))

    def columns(gate: Gate) -> tuple[str, ...]:
        return tuple(dict.fromkeys((moment_column(alpha, beta, gate), "num_tokens")))

    def score(table: pd.DataFrame, gate: Gate) -> FloatArray:
        total, tokens = numbers(table, moment_column(alpha, beta, gate), "num_tokens")
        return mean_over_routed(total, tokens) if b else total

    mean = r" \frac{1}{N_j}" if b else ""
    terms = _factor("g_{j,t}", alpha) + _factor(r"\lVert f_{j,t} \rVert_2", beta)
    return Criterion(
        name=name,
        label=label,
        formula=rf"S_j ={mean} \sum_{{t: j \in E_t}}{terms or ' 1'}",
        reference=REFERENCE,
        source="routed",
        columns=columns,
        score=score,
        exponents=exponents,
        uses_gate=alpha > 0,
    )


NAMED_VARIANTS = tuple(unified(*exponents) for exponents in _NAMED)
