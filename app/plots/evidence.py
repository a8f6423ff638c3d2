"""Charts of what stands behind a choice: tokens, exact damage, models and sparsities, one layer."""

from collections.abc import Mapping, Sequence
from fractions import Fraction

import numpy as np
import pandas as pd

from analysis.criteria import Criterion, get_criterion
from analysis.ranking.compare import Comparison
from analysis.ranking.experts import saliency_grid
from analysis.ranking.overlap import mean_overlaps, pruned_mask, variant_overlaps
from analysis.ranking.proxy import damage_table
from analysis.stats.shards import overlap_of_parts
from analysis.stats.tables import ExpertStats, Gate
from app.charts.chart import Drawing
from app.figures import bump, damage_proxy, parts_curve, variant_grid

Exponents = tuple[int, int, int]
# The stand-in of arXiv:2606.15716, Figure 3.
PROXY = "gate-ean"
GRID_PERCENTS = (25, 50, 75)


def parts_table(
    parts: Mapping[str, Sequence[ExpertStats]],
    criteria: Sequence[Criterion],
    gate: Gate,
    sparsity: Fraction,
) -> pd.DataFrame:
    """Table `corpus, criterion, tokens, overlap, chance`: parts of the tokens against all.

    Args:
        parts: by corpus, the statistics of growing parts of a run.
    """
    tables = [
        overlap_of_parts(seen, criterion, gate, sparsity).assign(
            corpus=corpus, criterion=criterion.label
        )
        for corpus, seen in parts.items()
        for criterion in criteria
    ]
    table = pd.concat(tables, ignore_index=True)
    return table[["corpus", "criterion", "tokens", "overlap", "chance"]]


def parts_chart(table: pd.DataFrame, about: str) -> Drawing:
    """How many tokens a choice needs, of a table of `parts_table`."""
    return Drawing(
        "overlap-by-tokens",
        lambda dark: parts_curve.parts_curve(table, dark=dark),
        table,
        parts_curve.describe(table),
        about,
    )


def fate_table(
    stats: ExpertStats, proxy: Criterion, gate: Gate, sparsity: Fraction
) -> pd.DataFrame:
    """Table of `damage_table` and `fate`: what the exact damage and a proxy each prune.

    Raises:
        CriterionError: the statistics lack the group `damage`.
    """
    table = damage_table(stats, proxy, gate)
    by_damage, by_proxy = (
        pruned_mask(saliency_grid(criterion, stats, gate), stats.grid, sparsity)
        for criterion in (get_criterion("damage"), proxy)
    )
    codes = 2 * by_damage.astype(np.int8) + by_proxy.astype(np.int8)
    return table.assign(fate=np.array(damage_proxy.FATES)[codes[stats.grid.present]])


def damage_chart(table: pd.DataFrame, proxy: Criterion, about: str) -> Drawing:
    """Exact damage against a score that costs nothing, of a table of `fate_table`."""
    return Drawing(
        "damage-proxy",
        lambda dark: damage_proxy.damage_proxy(table, proxy=proxy.label, dark=dark),
        table,
        damage_proxy.describe(table, proxy=proxy.label),
        about,
    )


def grid_table(
    models: Mapping[str, Mapping[str, ExpertStats]], gate: Gate, sparsities: Sequence[Fraction]
) -> pd.DataFrame:
    """Table `model, sparsity, criterion, b, alpha, beta, overlap, chance`: mean over pairs.

    Args:
        models: by name of the model, its statistics by corpus.
    """
    tables = [
        mean_overlaps(variant_overlaps(stats, gate, sparsity)).assign(
            model=model, sparsity=float(sparsity)
        )
        for model, stats in models.items()
        for sparsity in sparsities
    ]
    table = pd.concat(tables, ignore_index=True)
    return table[["model", "sparsity", *table.columns.drop(["model", "sparsity"])]]


def grid_chart(table: pd.DataFrame, selected: Exponents | None, about: str) -> Drawing:
    """The 18 variants at several sparsities, of a table of `grid_table`; `selected` outlined."""
    return Drawing(
        "overlap-maps",
        lambda dark: variant_grid.variant_grid(table, selected=selected, dark=dark),
        table,
        variant_grid.describe(table),
        about,
    )


def rank_flow_chart(
    comparison: Comparison, names: tuple[str, str], place: tuple[int, int | None], about: str
) -> Drawing:
    """The ranks of one layer under two recipes.

    Args:
        place: the layer, and an expert of it to point out.
    """
    layer, expert = place
    table = comparison.table()
    rows = table[table["layer"] == layer].reset_index(drop=True)
    return Drawing(
        "rank-flow",
        lambda dark: bump.bump(rows, names, marked=expert, dark=dark),
        rows,
        bump.describe(rows),
        about,
    )


def most_moved(comparison: Comparison) -> int:
    """The layer whose experts the recipes agree on least; of equals, the first."""
    by_layer = comparison.by_layer
    return int(by_layer["layer"].to_numpy()[by_layer["agreement"].to_numpy().argmin()])
