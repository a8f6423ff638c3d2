"""Exact single-expert damage: how much a layer's output changes without the expert."""

from __future__ import annotations

from analysis.criteria.base import Criterion, always, numbers

DAMAGE = Criterion(
    name="damage",
    label="Exact damage",
    formula=r"S_j = \sum_{t: j \in E_t} \lVert y_t - y_t^{(-j)} \rVert_2",
    reference="arXiv:2606.15716, Eq. 5-8",
    source="routed",
    columns=always("damage", "num_tokens"),
    score=lambda table, gate: numbers(table, "damage")[0],
)
