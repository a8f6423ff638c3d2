"""Rankings of experts: criterion and statistics -> which expert of a layer is kept first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from analysis.criteria import Criterion, expert_score_of
from analysis.errors import CriterionError, PlanError
from analysis.lazy import pd
from analysis.numbers.arrays import FloatArray, IntArray
from analysis.stats.columns import OPTIONAL_COLUMNS, Gate
from analysis.stats.grid import Grid
from analysis.stats.tables import ExpertStats, NoStats, WeightStats

if TYPE_CHECKING:
    from analysis.families.base import MoELayer

RANKING_COLUMNS = ("layer", "expert", "score", "saliency", "rank", "num_tokens")
Stats = ExpertStats | WeightStats | NoStats


def has_columns(criterion: Criterion, stats: ExpertStats) -> bool:
    """Whether these statistics have what the criterion reads."""
    if criterion.from_samples:
        return bool(stats.samples)
    return set(criterion.columns("applied")) <= set(stats.table.columns)


def can_rank(criterion: Criterion, part: ExpertStats) -> bool:
    """Whether a part of a run has what the criterion reads."""
    return criterion.source == "routed" and has_columns(criterion, part)


def scored(criterion: Criterion, stats: Stats, gate: Gate) -> tuple[FloatArray, FloatArray]:
    """Score (the paper's number) and saliency of every expert, in (layer, expert) order."""
    if criterion.is_constant:
        raise CriterionError(f"{criterion.label} gives every expert the same score.")
    rule = expert_score_of(criterion)
    if criterion.source == "routed" and not isinstance(stats, ExpertStats):
        raise CriterionError(f"{criterion.label} needs calibration statistics, not weights alone.")
    if criterion.source == "weights" and not isinstance(stats, WeightStats):
        raise CriterionError(f"{criterion.label} needs weight statistics; run `moeprune weights`.")
    table = stats.per_expert() if isinstance(stats, WeightStats) else stats.table
    if criterion.from_samples and isinstance(stats, ExpertStats) and stats.samples:
        columns = criterion.from_samples(stats.samples)
        table = table.assign(**{str(name): columns[name].to_numpy() for name in columns})
    for column, hint in OPTIONAL_COLUMNS.items():
        if column in criterion.columns("applied") and column not in table:
            raise CriterionError(f"These statistics lack {column} for {criterion.label}: {hint}.")
    score = rule(table, gate)
    return score, criterion.order(table) if criterion.order else criterion.saliency(score)


def score_experts(criterion: Criterion, stats: Stats, gate: Gate) -> FloatArray:
    """The paper's number for every expert, in (layer, expert) order."""
    return scored(criterion, stats, gate)[0]


def keeping_order(saliency: FloatArray, grid: Grid | None = None) -> IntArray:
    """(layers, experts) saliency -> expert ids in the order of keeping, within each layer.

    Ties keep the lower id first; absent experts (NaN) come last. With `grid`, the groups of a
    router that chooses among groups take turns, so any number to keep holds the best of each group.
    """
    order = np.argsort(-saliency, axis=1, kind="stable")
    for row, layer in enumerate(grid.layers if grid else ()):
        if layer.num_groups > 1:
            # The best of each group, then the second best of each, ...
            ids = order[row, : layer.num_experts]
            size = layer.num_experts // layer.num_groups
            turn = np.empty_like(ids)
            for group in range(layer.num_groups):
                turn[ids // size == group] = np.arange(size)
            order[row, : layer.num_experts] = ids[np.argsort(turn, kind="stable")]
    return order


def rank_of(order: IntArray) -> IntArray:
    """Inverse of `keeping_order`: rank of each expert, 0 = kept first."""
    ranks = np.empty_like(order)
    np.put_along_axis(ranks, order, np.arange(order.shape[1])[None, :], axis=1)
    return ranks


def saliency_grid(criterion: Criterion, stats: Stats, gate: Gate) -> FloatArray:
    """(layers, experts) saliency, higher = keep; NaN where a layer has no such expert."""
    return stats.grid.fold(scored(criterion, stats, gate)[1])


def rank_experts(criterion: Criterion, stats: Stats, gate: Gate) -> pd.DataFrame:
    """Table `layer, expert, score, saliency, rank, num_tokens`, one row per expert.

    rank 0 is kept first within its layer, see `keeping_order`. num_tokens is empty for criteria
    that read no routed tokens.
    """
    grid: Grid = stats.grid
    score, saliency = scored(criterion, stats, gate)
    ranks = rank_of(keeping_order(grid.fold(saliency), grid))[grid.present]
    routed = criterion.source == "routed"
    # A blend has fractional numbers of tokens.
    num_tokens = (
        stats.table["num_tokens"].reset_index(drop=True).convert_dtypes()
        if routed
        else pd.Series(pd.NA, index=range(len(score)), dtype="Int64")
    )
    return grid.index().assign(score=score, saliency=saliency, rank=ranks, num_tokens=num_tokens)


def fold_ranking(
    ranking: pd.DataFrame, layers: Sequence[MoELayer], column: str = "saliency"
) -> FloatArray:
    """(layers, most experts of a layer) values of a ranking, independent of the order of rows."""
    grid = Grid(tuple(layers))
    layer, expert = (ranking[name].to_numpy(np.int64) for name in ("layer", "expert"))
    rows, columns = np.nonzero(grid.present)
    wide = max(int(grid.counts.max(initial=0)), int(expert.max(initial=0)) + 1)
    keys = layer * wide + expert  # one number for each expert of each layer
    wanted = np.array([layer.index for layer in layers], dtype=np.int64)[rows] * wide + columns
    order = np.argsort(keys)
    ordered = keys[order]
    places = np.searchsorted(ordered, wanted)
    is_there = places < len(ordered)
    if (
        (ordered[1:] == ordered[:-1]).any()
        or not is_there.all()
        or (ordered[places] != wanted).any()
    ):
        raise PlanError("The ranking does not hold every expert of every layer exactly once.")
    return grid.fold(ranking[column].to_numpy("float64")[order[places]])
