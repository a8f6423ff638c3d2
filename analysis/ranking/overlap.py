"""How much the pruned set depends on the calibration corpus (arXiv:2606.15716, Figures 4-5)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from itertools import combinations

import numpy as np

from analysis.arrays import BoolArray, FloatArray, IntArray
from analysis.criteria import RANKABLE, Criterion, unified
from analysis.errors import StatsError
from analysis.lazy import pd
from analysis.ranking.experts import order_of, rank_of, saliency_grid
from analysis.sparsity import num_removed
from analysis.stats.grid import Grid
from analysis.stats.tables import ExpertStats, Gate

OVERLAP_COLUMNS = (
    "criterion", "b", "alpha", "beta", "sparsity", "corpus_a", "corpus_b", "overlap", "chance",
)  # fmt: skip


def kept_counts(grid: Grid, sparsity: Fraction) -> IntArray:
    """Experts that a uniform schedule keeps in each layer."""
    counts = [int(count) - num_removed(int(count), sparsity) for count in grid.counts]
    return np.array(counts, dtype=np.int64)


def pruned_mask(saliency: FloatArray, grid: Grid, sparsity: Fraction) -> BoolArray:
    """(layers, experts): True where the expert is pruned at this uniform sparsity."""
    ranks = rank_of(order_of(saliency, grid))
    mask: BoolArray = (ranks >= kept_counts(grid, sparsity)[:, None]) & grid.present
    return mask


def set_overlap(first: BoolArray, second: BoolArray) -> float:
    """Mean over layers of |A & B| / |A|; NaN when nothing is pruned."""
    sizes = first.sum(axis=1)
    if not sizes.any():
        return float("nan")
    used = sizes > 0
    return float(((first & second).sum(axis=1)[used] / sizes[used]).mean())


def chance_overlap(grid: Grid, sparsity: Fraction, num_corpora: int = 2) -> float:
    """Expected overlap of as many random pruned sets: sparsity^(corpora - 1), after rounding.

    Over the layers that lose experts, as `set_overlap`; NaN when none does.
    """
    removed = grid.counts - kept_counts(grid, sparsity)
    used = removed > 0
    shares = removed[used] / grid.counts[used]
    return float((shares ** (num_corpora - 1)).mean()) if used.any() else float("nan")


def pruned_masks(
    criterion: Criterion, stats: Mapping[str, ExpertStats], gate: Gate, sparsity: Fraction
) -> dict[str, BoolArray]:
    """Pruned set by corpus."""
    if len({each.manifest.model.identity for each in stats.values()}) > 1:
        raise StatsError("Overlap compares runs of one model, but these are of different models.")
    return {
        corpus: pruned_mask(saliency_grid(criterion, each, gate), each.grid, sparsity)
        for corpus, each in stats.items()
    }


def _overlap_rows(
    criterion: Criterion, stats: Mapping[str, ExpertStats], gate: Gate, sparsity: Fraction
) -> list[tuple[object, ...]]:
    masks = pruned_masks(criterion, stats, gate, sparsity)
    chance = chance_overlap(next(iter(stats.values())).grid, sparsity)
    common = (criterion.name, *(criterion.exponents or (None, None, None)), float(sparsity))
    return [
        (*common, first, second, set_overlap(masks[first], masks[second]), chance)
        for first, second in combinations(masks, 2)
    ]


def _overlap_table(rows: Iterable[tuple[object, ...]]) -> pd.DataFrame:
    exponents = dict.fromkeys(("b", "alpha", "beta"), "Int64")
    return pd.DataFrame(rows, columns=list(OVERLAP_COLUMNS)).astype(exponents)


def criterion_overlap(
    criterion: Criterion, stats: Mapping[str, ExpertStats], gate: Gate, sparsity: Fraction
) -> pd.DataFrame:
    """Table of OVERLAP_COLUMNS: one row per pair of corpora."""
    return _overlap_table(_overlap_rows(criterion, stats, gate, sparsity))


def all_way_overlap(masks: Sequence[BoolArray]) -> float:
    """Mean over layers of the share of the first set that is in all of them."""
    return set_overlap(masks[0], np.logical_and.reduce(masks))


def variant_overlaps(
    stats: Mapping[str, ExpertStats], gate: Gate, sparsity: Fraction
) -> pd.DataFrame:
    """Table of OVERLAP_COLUMNS for the 17 rankable variants, one row per variant and pair."""
    return _overlap_table(
        row
        for exponents in RANKABLE
        for row in _overlap_rows(unified(*exponents), stats, gate, sparsity)
    )


def mean_overlaps(overlaps: pd.DataFrame) -> pd.DataFrame:
    """Table `criterion, b, alpha, beta, overlap, chance`: the mean over pairs of corpora."""
    keys = ["criterion", "b", "alpha", "beta"]
    return overlaps.groupby(keys, as_index=False, dropna=False, sort=False)[
        ["overlap", "chance"]
    ].mean()


def overlap_matrix(overlaps: pd.DataFrame, corpora: Sequence[str]) -> pd.DataFrame:
    """Table `corpus_a, corpus_b, overlap` with both directions and the diagonal."""
    # A uniform schedule prunes equally many on both sides, so the overlap is symmetric.
    pairs = overlaps[["corpus_a", "corpus_b", "overlap"]]
    swapped = pairs.rename(columns={"corpus_a": "corpus_b", "corpus_b": "corpus_a"})
    same = pd.DataFrame({"corpus_a": corpora, "corpus_b": corpora, "overlap": 1.0})
    return pd.concat([pairs, swapped[pairs.columns], same], ignore_index=True)
