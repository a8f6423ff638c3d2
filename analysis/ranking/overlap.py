"""How much the pruned set depends on the calibration corpus (arXiv:2606.15716, Figures 4-5).

Overlaps of pruned sets, and the effect of each exponent of the unified family.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from itertools import combinations

import numpy as np

from analysis.criteria import RANKABLE, Criterion, unified
from analysis.errors import CriterionError, StatsError
from analysis.lazy import pd
from analysis.numbers.arrays import BoolArray, FloatArray, IntArray
from analysis.numbers.sparsity import num_removed
from analysis.ranking.experts import Stats, can_rank, keeping_order, rank_of, saliency_grid
from analysis.stats.columns import Gate
from analysis.stats.grid import Grid
from analysis.stats.tables import ExpertStats

OVERLAP_COLUMNS = (
    "criterion", "b", "alpha", "beta", "sparsity", "corpus_a", "corpus_b", "overlap", "chance",
)  # fmt: skip
# Experts by which overlaps may differ and still count as equal: a tie at the cut, broken by the
# expert's number, moves one on either side.
NEAR = 2
# Of a mean: what is equal stays equal, in whichever order the parts were added.
_DIGITS = 12


def kept_counts(grid: Grid, sparsity: Fraction) -> IntArray:
    """Experts that a uniform schedule keeps in each layer."""
    counts = [int(count) - num_removed(int(count), sparsity) for count in grid.counts]
    return np.array(counts, dtype=np.int64)


def pruned_mask(saliency: FloatArray, grid: Grid, sparsity: Fraction) -> BoolArray:
    """(layers, experts): True where the expert is pruned at this uniform sparsity."""
    ranks = rank_of(keeping_order(saliency, grid))
    mask: BoolArray = (ranks >= kept_counts(grid, sparsity)[:, None]) & grid.present
    return mask


def set_overlap(first: BoolArray, second: BoolArray) -> float:
    """Mean over layers of |A & B| / |A|; NaN if nothing is pruned."""
    sizes = first.sum(axis=1)
    if not sizes.any():
        return float("nan")
    has_pruned = sizes > 0
    return float(((first & second).sum(axis=1)[has_pruned] / sizes[has_pruned]).mean())


def chance_overlap(grid: Grid, sparsity: Fraction, num_corpora: int = 2) -> float:
    """Expected overlap of that many random pruned sets: sparsity^(corpora - 1), after rounding.

    Over the layers that lose experts, as in `set_overlap`; NaN if none does.
    """
    num_pruned = grid.counts - kept_counts(grid, sparsity)
    has_pruned = num_pruned > 0
    shares = num_pruned[has_pruned] / grid.counts[has_pruned]
    return float((shares ** (num_corpora - 1)).mean()) if has_pruned.any() else float("nan")


def above_chance(overlap: FloatArray, chance: float) -> FloatArray:
    """Chance-corrected overlap: 0 for random sets, 1 for equal ones, negative for less than chance.

    Comparable between sparsities: an overlap of 0.73 is below chance at sparsity 75%, but 0.40 at
    25% is a fifth of the way from chance to 1. NaN if chance is 1.
    """
    room = 1 - chance if chance < 1 else np.nan
    return (np.asarray(overlap, dtype=np.float64) - chance) / room


def beside_chance(overlap: FloatArray, chance: float) -> FloatArray:
    """As `above_chance`, but -1 for sets that share nothing: below chance as a share of it."""
    above = above_chance(overlap, chance)
    below = (np.asarray(overlap, dtype=np.float64) - chance) / (chance or np.nan)
    return np.where(above < 0, below, above)


def too_near(first: float, second: float, pruned: int) -> bool:
    """Whether overlaps of sets of this size differ by NEAR experts or fewer."""
    return round(abs(first - second) * pruned) <= NEAR


def pruned_by(criterion: Criterion, stats: Stats, gate: Gate, sparsity: Fraction) -> BoolArray:
    """(layers, experts): True where a uniform schedule prunes the expert by this criterion."""
    return pruned_mask(saliency_grid(criterion, stats, gate), stats.grid, sparsity)


def pruned_masks(
    criterion: Criterion, stats: Mapping[str, ExpertStats], gate: Gate, sparsity: Fraction
) -> dict[str, BoolArray]:
    """The pruned set of each corpus."""
    if len({corpus_stats.manifest.model.identity for corpus_stats in stats.values()}) > 1:
        raise StatsError("Overlap compares runs of one model, but these are of different models.")
    return {
        corpus: pruned_by(criterion, corpus_stats, gate, sparsity)
        for corpus, corpus_stats in stats.items()
    }


def overlap_of_parts(
    parts: Sequence[ExpertStats], criterion: Criterion, gate: Gate, sparsity: Fraction
) -> pd.DataFrame:
    """Table `tokens, overlap, chance`: pruned sets of parts of the tokens against that of all.

    tokens is the number counted in a part; overlap the share of its pruned set that all tokens
    prune too, mean over layers; chance the overlap of random sets. Both are 0..1. `parts` are
    growing parts of one run from `stats_at`; the last has all tokens.
    """
    if not can_rank(criterion, parts[0]):
        raise CriterionError(
            f"{criterion.label} cannot rank on a part of the tokens, of which a run keeps sums "
            "alone; choose another criterion, such as reap."
        )
    masks = [pruned_by(criterion, part, gate, sparsity) for part in parts]
    return pd.DataFrame(
        {
            "tokens": [
                sum(corpus.num_counted for corpus in part.manifest.corpora) for part in parts
            ],
            "overlap": [set_overlap(mask, masks[-1]) for mask in masks],
            "chance": chance_overlap(parts[-1].grid, sparsity),
        }
    )


def criteria_overlaps(
    criteria: Iterable[Criterion],
    stats: Mapping[str, ExpertStats],
    gate: Gate,
    sparsity: Fraction,
) -> pd.DataFrame:
    """Table of OVERLAP_COLUMNS: one row per criterion and pair of corpora."""
    chance = chance_overlap(next(iter(stats.values())).grid, sparsity)
    rows = []
    for criterion in criteria:
        masks = pruned_masks(criterion, stats, gate, sparsity)
        common = (criterion.name, *(criterion.exponents or (None, None, None)), float(sparsity))
        for first, second in combinations(masks, 2):
            overlap = set_overlap(masks[first], masks[second])
            rows.append((*common, first, second, overlap, chance))
    exponents = dict.fromkeys(("b", "alpha", "beta"), "Int64")
    return pd.DataFrame(rows, columns=list(OVERLAP_COLUMNS)).astype(exponents)


def criterion_overlap(
    criterion: Criterion, stats: Mapping[str, ExpertStats], gate: Gate, sparsity: Fraction
) -> pd.DataFrame:
    """Table of OVERLAP_COLUMNS: one row per pair of corpora."""
    return criteria_overlaps([criterion], stats, gate, sparsity)


def variant_overlaps(
    stats: Mapping[str, ExpertStats], gate: Gate, sparsity: Fraction
) -> pd.DataFrame:
    """Table of OVERLAP_COLUMNS for the 17 rankable variants, one row per variant and pair."""
    variants = [unified(*exponents) for exponents in RANKABLE]
    return criteria_overlaps(variants, stats, gate, sparsity)


def mean_overlaps(overlaps: pd.DataFrame) -> pd.DataFrame:
    """Table `criterion, b, alpha, beta, overlap, chance`: the mean over pairs of corpora."""
    keys = ["criterion", "b", "alpha", "beta"]
    return (
        overlaps.groupby(keys, as_index=False, dropna=False, sort=False)[["overlap", "chance"]]
        .mean()
        .round(_DIGITS)
    )


def variant_means(stats: Mapping[str, ExpertStats], gate: Gate, sparsity: Fraction) -> pd.DataFrame:
    """Table of `mean_overlaps` of the 17 rankable variants, one row each."""
    return mean_overlaps(variant_overlaps(stats, gate, sparsity))


def symmetric_overlaps(overlaps: pd.DataFrame, corpora: Sequence[str]) -> pd.DataFrame:
    """Table `corpus_a, corpus_b, overlap` with both directions and the diagonal."""
    # A uniform schedule prunes equally many on both sides, so the overlap is symmetric.
    pairs = overlaps[["corpus_a", "corpus_b", "overlap"]]
    swapped = pairs.rename(columns={"corpus_a": "corpus_b", "corpus_b": "corpus_a"})
    same = pd.DataFrame({"corpus_a": corpora, "corpus_b": corpora, "overlap": 1.0})
    return pd.concat([pairs, swapped[pairs.columns], same], ignore_index=True)


def exponent_effects(means: pd.DataFrame) -> pd.DataFrame:
    """Table `component, value, overlap, lowest, highest, variants` (arXiv:2606.15716, Figure 4).

    For each value of an exponent, the mean, lowest and highest overlap of the rankable variants
    with it. `means` is the result of `mean_overlaps`.
    """
    rows = []
    for component in ("b", "alpha", "beta"):
        for value in sorted(set(means[component].tolist())):
            group = means.loc[means[component] == value, "overlap"]
            mean = round(float(group.mean()), _DIGITS)
            rows.append((component, value, mean, group.min(), group.max(), len(group)))
    columns = ["component", "value", "overlap", "lowest", "highest", "variants"]
    return pd.DataFrame(rows, columns=columns)


def effects_over_models(means: Iterable[pd.DataFrame]) -> pd.DataFrame:
    """Table of `exponent_effects` over models, equally weighted."""
    effects = pd.concat([exponent_effects(mean) for mean in means], ignore_index=True)
    return effects.groupby(["component", "value"], as_index=False, sort=False).agg(
        {"overlap": "mean", "lowest": "min", "highest": "max", "variants": "sum"}
    )
