"""Exact single-expert damage: how much a layer's output changes without the expert."""

import pandas as pd

from analysis.arrays import FloatArray
from analysis.criteria.base import Criterion
from analysis.stats import Gate


def _columns(gate: Gate) -> tuple[str, ...]:
    del gate
    return ("damage", "num_tokens")


def _score(table: pd.DataFrame, gate: Gate) -> FloatArray:
    del gate
    score: FloatArray = table["damage"].to_numpy(dtype="float64")
    return score


DAMAGE = Criterion(
    name="damage",
    label="Exact damage",
    formula=r"S_j = \sum_{t: j \in E_t} \lVert y_t - y_t^{(-j)} \rVert_2",
    reference="arXiv:2606.15716, Eq. 5-8",
    source="routed",
    columns=_columns,
    score=_score,
)
