"""MoNE: mean gate weight times the spread of the expert's outputs (arXiv:2606.15716, Table 6)."""

from __future__ import annotations

import numpy as np

from analysis.criteria.base import Criterion, numbers
from analysis.criteria.unified import mean_over_routed
from analysis.lazy import pd
from analysis.numbers.arrays import FloatArray
from analysis.stats.columns import Gate, moment_column


def _columns(gate: Gate) -> tuple[str, ...]:
    return ("num_tokens", moment_column(0, 2, gate), moment_column(1, 0, gate), "vector_sum_sq")


def _score(table: pd.DataFrame, gate: Gate) -> FloatArray:
    tokens, squares, gates, vector_sq = numbers(table, *_columns(gate))
    # sum_d Var_d = (sum ||f||^2 - ||sum f||^2 / N) / (N - 1). Rounding can make the difference
    # slightly negative where all outputs are equal.
    spread = np.maximum(squares - mean_over_routed(vector_sq, tokens), 0.0)
    variance = np.divide(spread, tokens - 1, out=np.zeros_like(spread), where=tokens >= 2)
    score: FloatArray = mean_over_routed(gates, tokens) * np.sqrt(variance)
    return score


MONE = Criterion(
    name="mone",
    label="MoNE",
    formula=r"\bar g_j \cdot \lVert \sqrt{\mathrm{Var}_t\, f_{j,t}} \rVert_2",
    reference="arXiv:2606.15716, Table 6",
    source="routed",
    columns=_columns,
    score=_score,
    uses_gate=True,
)
