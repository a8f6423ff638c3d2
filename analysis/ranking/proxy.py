"""How well free sums approximate the exact damage (arXiv:2606.15716, Figure 3)."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from analysis.criteria import RANKABLE, Criterion, get_criterion, unified
from analysis.lazy import pd
from analysis.numbers.arrays import FloatArray
from analysis.ranking.compare import kendall_tau
from analysis.ranking.experts import saliency_grid, score_experts
from analysis.ranking.overlap import chance_overlap, pruned_by, pruned_mask, set_overlap
from analysis.stats.columns import Gate
from analysis.stats.tables import ExpertStats

SPARSITIES = (Fraction(1, 4), Fraction(1, 2))


def proxy_overlap(stats: ExpertStats, sparsities: Sequence[Fraction] = SPARSITIES) -> pd.DataFrame:
    """Table `sparsity, overlap, chance`: pruned sets of the exact damage and of its proxy.

    overlap is the mean over layers of the share of one set that is in the other; chance that of
    two random sets.
    """
    exact, proxy = get_criterion("damage"), unified(0, 1, 1)  # the proxy: sum of g ||f||
    rows = []
    for sparsity in sparsities:
        masks = [pruned_by(criterion, stats, "applied", sparsity) for criterion in (exact, proxy)]
        rows.append((float(sparsity), set_overlap(*masks), chance_overlap(stats.grid, sparsity)))
    return pd.DataFrame(rows, columns=["sparsity", "overlap", "chance"])


def damage_table(stats: ExpertStats, proxy: Criterion, gate: Gate) -> pd.DataFrame:
    """Table `layer, expert, num_tokens, damage, proxy`: exact damage and a criterion's score."""
    exact = score_experts(get_criterion("damage"), stats, "applied")
    return stats.table[["layer", "expert", "num_tokens"]].assign(
        damage=exact, proxy=score_experts(proxy, stats, gate)
    )


def proxy_quality(
    stats: ExpertStats, gate: Gate, sparsities: Sequence[Fraction] = SPARSITIES
) -> pd.DataFrame:
    """Table `criterion, label, kendall_tau, pearson_log, overlap_25, ...`, one row per variant.

    How well each rankable variant approximates the exact damage. kendall_tau (-1..1) compares the
    two orders, mean over layers; pearson_log (-1..1) the logarithms of the two numbers over all
    experts with both positive; overlap_P (0..1) is the share of pruned experts in common at P
    percent, mean over layers. Sorted by overlap at the last sparsity, best first.
    """
    exact = saliency_grid(get_criterion("damage"), stats, "applied")
    exact_masks = [pruned_mask(exact, stats.grid, sparsity) for sparsity in sparsities]
    names = [f"overlap_{float(100 * sparsity):g}" for sparsity in sparsities]
    rows = []
    for exponents in RANKABLE:
        proxy = unified(*exponents)
        saliency = saliency_grid(proxy, stats, gate)
        masks = [pruned_mask(saliency, stats.grid, sparsity) for sparsity in sparsities]
        overlaps = [set_overlap(*pair) for pair in zip(exact_masks, masks, strict=True)]
        present = zip(exact, saliency, ~np.isnan(exact), strict=True)
        taus = pd.Series([kendall_tau(one[here], other[here]) for one, other, here in present])
        tau, pearson = float(taus.mean()), _pearson_log(exact, saliency)
        rows.append((proxy.name, proxy.label, tau, pearson, *overlaps))
    columns = ["criterion", "label", "kendall_tau", "pearson_log", *names]
    table = pd.DataFrame(rows, columns=columns)
    return table.sort_values(names[-1], ascending=False, kind="stable").reset_index(drop=True)


def _pearson_log(first: FloatArray, second: FloatArray) -> float:
    """Pearson's r of the logarithms where both are positive; NaN if one of them is constant."""
    both = (first > 0) & (second > 0)  # False where NaN
    one, other = np.log(first[both]), np.log(second[both])
    if both.sum() < 2 or np.ptp(one) == 0 or np.ptp(other) == 0:
        return float("nan")
    return float(np.corrcoef(one, other)[0, 1])
