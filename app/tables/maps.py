"""Tables and panels that the Explore page shows, made from statistics."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.arrays import FloatArray
from analysis.criteria import Criterion
from analysis.ranking.experts import Stats, order_of, scored
from analysis.ranking.overlap import (
    kept_counts,
    pruned_mask,
    set_overlap,
)
from analysis.ranking.stratification import rescale, separation
from analysis.stats.grid import Grid
from analysis.stats.tables import ExpertStats, Gate


@dataclass(frozen=True, eq=False)
class Ranked:
    """A criterion applied to the model on screen; arrays are (layers, experts), NaN = absent."""

    criterion: Criterion
    grid: Grid
    score: FloatArray
    saliency: FloatArray

    @property
    def order(self) -> NDArray[np.int64]:
        """Expert ids from first to keep to last; -1 where there are fewer."""
        order = order_of(self.saliency, self.grid)
        return np.where(self.grid.present, order, -1)

    def pruned(self, sparsity: Fraction) -> NDArray[np.bool_]:
        """True where the expert goes at this uniform sparsity."""
        return pruned_mask(self.saliency, self.grid, sparsity)


def rank(criterion: Criterion, stats: Stats, gate: Gate) -> Ranked:
    """Scores and saliency of every expert."""
    score, saliency = scored(criterion, stats, gate)
    grid = stats.grid
    return Ranked(criterion, grid, grid.fold(score), grid.fold(saliency))


def ranked_experts(panels: Sequence[Ranked], sparsity: Fraction) -> pd.DataFrame:
    """Table `panel, layer, expert, rank, value, kept`: the expert map of each criterion.

    `rank` 0 is kept first; `value` is the saliency rescaled to 0..1 in its layer.
    """
    return pd.concat([_ranked_experts(each, sparsity) for each in panels], ignore_index=True)


def _ranked_experts(ranked: Ranked, sparsity: Fraction) -> pd.DataFrame:
    order, values = ranked.order, rescale(ranked.saliency)
    rows, ranks = np.nonzero(order >= 0)
    experts = order[rows, ranks]
    return pd.DataFrame(
        {
            "panel": ranked.criterion.label,
            "layer": np.array([layer.index for layer in ranked.grid.layers])[rows],
            "expert": experts,
            "rank": ranks,
            "value": values[rows, experts],
            "kept": ranks < kept_counts(ranked.grid, sparsity)[rows],
        }
    )


def separations(panels: Sequence[Ranked], sparsity: Fraction) -> pd.DataFrame:
    """Table `layer, kept, gap, boundary, band, panel`: how clear each criterion's cut is."""
    tables = [
        separation(ranked.saliency, ranked.grid, kept_counts(ranked.grid, sparsity)).assign(
            panel=ranked.criterion.label
        )
        for ranked in panels
    ]
    return pd.concat(tables, ignore_index=True)


def same_pruned(first: Ranked, second: Ranked, sparsity: Fraction) -> float:
    """Share of the experts that `first` prunes which `second` prunes too; NaN at sparsity 0."""
    return set_overlap(first.pruned(sparsity), second.pruned(sparsity))


def never_routed_experts(stats: Mapping[str, ExpertStats]) -> pd.DataFrame:
    """Table `layer, expert, texts`: experts without a token, and on which texts."""
    rows = [
        (int(row.layer), int(row.expert), corpus)  # type: ignore[arg-type]
        for corpus, each in stats.items()
        for row in each.table.loc[each.table["num_tokens"] == 0, ["layer", "expert"]].itertuples()
    ]
    table = pd.DataFrame(rows, columns=["layer", "expert", "texts"])
    return table.groupby(["layer", "expert"])["texts"].agg(", ".join).reset_index()


def never_routed(stats: ExpertStats) -> int:
    """Experts that no calibration token reached."""
    return int((stats.table["num_tokens"] == 0).sum())
