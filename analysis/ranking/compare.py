"""Compare two recipes: which experts both, one or neither keep, and how similarly they rank."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from analysis.errors import StatsError
from analysis.lazy import pd
from analysis.numbers.arrays import BoolArray, FloatArray, IntArray
from analysis.ranking.experts import keeping_order, rank_of
from analysis.stats.grid import Grid

# Place in the tuple = code in `Comparison.fates`.
FATES: Final = ("both", "only A", "only B", "neither")
ABSENT: Final = -1
COMPARISON_COLUMNS: Final = (
    "layer", "expert", "kept_by", "rank_a", "rank_b", "saliency_a", "saliency_b",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class CriterionDecision:
    """A recipe's saliency of every expert, and what it prunes."""

    grid: Grid
    saliency: FloatArray  # (layers, experts), higher = keep; NaN where a layer has no such expert
    pruned: BoolArray  # (layers, experts): True where the expert is pruned

    @cached_property
    def order(self) -> IntArray:
        """(layers, experts): expert ids from the first to keep, absent ones last."""
        return keeping_order(self.saliency, self.grid)

    @cached_property
    def ranks(self) -> IntArray:
        """(layers, experts): 0 = first to keep in its layer."""
        return rank_of(self.order)


@dataclass(frozen=True, eq=False)
class Comparison:
    """Two decisions on the experts of one model."""

    a: CriterionDecision
    b: CriterionDecision

    def __post_init__(self) -> None:
        if self.a.grid.layers != self.b.grid.layers:
            raise StatsError("The two recipes rank the experts of different models.")

    @property
    def grid(self) -> Grid:
        """The model's experts."""
        return self.a.grid

    @cached_property
    def fates(self) -> NDArray[np.int8]:
        """(layers, experts): place in FATES; ABSENT where there is no expert."""
        codes = 2 * self.a.pruned.astype(np.int8) + self.b.pruned.astype(np.int8)
        # Pruned by B alone is kept by A alone.
        return np.where(self.grid.present, codes, np.int8(ABSENT))

    def count(self, fate: str) -> int:
        """Experts of one of FATES."""
        return int((self.fates == FATES.index(fate)).sum())

    @property
    def agreement(self) -> float:
        """Share of all experts on which both agree, 0..1."""
        return (self.count("both") + self.count("neither")) / int(self.grid.counts.sum())

    @property
    def chance_agreement(self) -> float:
        """Expected agreement of two random choices that prune as many per layer."""
        counts = self.grid.counts
        gone_a, gone_b = (side.pruned.sum(axis=1) for side in (self.a, self.b))
        alike = (gone_a * gone_b + (counts - gone_a) * (counts - gone_b)) / counts
        return float(alike.sum() / counts.sum())

    @property
    def jaccard(self) -> float:
        """Pruned by both / pruned by either, over all layers; NaN when neither prunes."""
        either = int((self.a.pruned | self.b.pruned).sum())
        return self.count("neither") / either if either else float("nan")

    @cached_property
    def by_layer(self) -> pd.DataFrame:
        """Table `layer, agreement, jaccard, kendall_tau`, one row per layer."""
        present = self.grid.present
        both = (self.a.pruned & self.b.pruned).sum(axis=1).astype(np.float64)
        either = (self.a.pruned | self.b.pruned).sum(axis=1)
        alike = ((self.a.pruned == self.b.pruned) & present).sum(axis=1)
        taus = [
            kendall_tau(first[here], second[here])
            for first, second, here in zip(self.a.saliency, self.b.saliency, present, strict=True)
        ]
        jaccard = np.divide(both, either, out=np.full_like(both, np.nan), where=either > 0)
        return pd.DataFrame(
            {
                "layer": [layer.index for layer in self.grid.layers],
                "agreement": alike / self.grid.counts,
                "jaccard": jaccard,
                "kendall_tau": taus,
            }
        )

    @property
    def kendall_tau(self) -> float:
        """Mean over the layers in which both rank experts; NaN if there are none."""
        return float(self.by_layer["kendall_tau"].mean())

    def table(self) -> pd.DataFrame:
        """Table of COMPARISON_COLUMNS, one row per expert; rank 0 is kept first."""
        present = self.grid.present
        return self.grid.index().assign(
            kept_by=np.array(FATES)[self.fates[present]],
            rank_a=self.a.ranks[present],
            rank_b=self.b.ranks[present],
            saliency_a=self.a.saliency[present],
            saliency_b=self.b.saliency[present],
        )[list(COMPARISON_COLUMNS)]

    def disagreements(self) -> pd.DataFrame:
        """The rows of `table` that only one keeps, largest difference of ranks first."""
        table = self.table()
        differ = table[table["kept_by"].isin(("only A", "only B"))]
        distance = (differ["rank_a"] - differ["rank_b"]).abs()
        return differ.loc[distance.sort_values(ascending=False, kind="stable").index]


def kendall_tau(first: FloatArray, second: FloatArray) -> float:
    """Kendall's tau-b of two rows of numbers, -1..1; NaN if one of them is constant.

    Ties, such as experts that no token reached, are neither concordant nor discordant (Kendall
    1945). Compares all pairs: for the hundreds of experts of a layer that is faster than importing
    scipy, which the dashboard does not load.
    """
    signs_a = np.sign(np.subtract.outer(first, first))
    signs_b = np.sign(np.subtract.outer(second, second))
    untied = np.sqrt(np.abs(signs_a).sum() * np.abs(signs_b).sum())
    return float((signs_a * signs_b).sum() / untied) if untied else float("nan")
