"""How well a sum that costs nothing stands in for the exact damage (arXiv:2606.15716, Figure 3)."""

from collections.abc import Sequence
from fractions import Fraction

import pandas as pd

from analysis.criteria import get_criterion, unified
from analysis.overlap import chance_overlap, pruned_mask, set_overlap
from analysis.ranking import saliency_grid
from analysis.stats import ExpertStats

PROXY = (0, 1, 1)  # sum of g ||f||
SPARSITIES = (Fraction(1, 4), Fraction(1, 2))


def proxy_overlap(stats: ExpertStats, sparsities: Sequence[Fraction] = SPARSITIES) -> pd.DataFrame:
    """Table `sparsity, overlap, chance`: pruned sets of the exact damage and of its proxy.

    overlap is the mean over layers of the share of one set that is in the other; chance that of
    two random sets.

    Raises:
        CriterionError: the statistics lack the group `damage`.
    """
    exact = saliency_grid(get_criterion("damage"), stats, "applied")
    proxy = saliency_grid(unified(*PROXY), stats, "applied")
    rows = []
    for sparsity in sparsities:
        masks = [pruned_mask(saliency, stats.grid, sparsity) for saliency in (exact, proxy)]
        overlap, chance = set_overlap(*masks), chance_overlap(stats.grid, sparsity)
        rows.append((float(sparsity), overlap, chance))
    return pd.DataFrame(rows, columns=["sparsity", "overlap", "chance"])
