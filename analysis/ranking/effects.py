"""What each exponent does to the overlap between corpora, and the overlap of all of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction

from analysis.criteria import Criterion
from analysis.lazy import pd
from analysis.ranking.overlap import all_way_overlap, pruned_masks
from analysis.stats.tables import ExpertStats, Gate

COMPONENTS = ("b", "alpha", "beta")


def component_effects(means: pd.DataFrame) -> pd.DataFrame:
    """Table `component, value, overlap, lowest, highest, variants` (arXiv:2606.15716, Figure 4).

    For each value of an exponent the mean, least and largest overlap of the rankable variants that
    have it. `means` has a row a variant, as by `mean_overlaps`.
    """
    rows = []
    for component in COMPONENTS:
        for value in sorted(set(means[component].tolist())):
            group = means.loc[means[component] == value, "overlap"]
            rows.append((component, value, group.mean(), group.min(), group.max(), len(group)))
    columns = ["component", "value", "overlap", "lowest", "highest", "variants"]
    return pd.DataFrame(rows, columns=columns)


def effects_over_models(means: Iterable[pd.DataFrame]) -> pd.DataFrame:
    """Table of `component_effects` averaged over models, each of which counts the same.

    lowest and highest are those of any variant of any model; variants counts all of them.
    """
    effects = pd.concat([component_effects(each) for each in means], ignore_index=True)
    return effects.groupby(["component", "value"], as_index=False, sort=False).agg(
        {"overlap": "mean", "lowest": "min", "highest": "max", "variants": "sum"}
    )


def corpora_overlap(
    criterion: Criterion, stats: Mapping[str, ExpertStats], gate: Gate, sparsity: Fraction
) -> float:
    """Mean over layers of the share of a pruned set that is pruned under every corpus."""
    return all_way_overlap(list(pruned_masks(criterion, stats, gate, sparsity).values()))
