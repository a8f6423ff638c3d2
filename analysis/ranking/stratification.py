"""Stratification: how clearly a criterion separates experts (arXiv:2603.18492, Fig. 2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import pi, sqrt

import numpy as np

from analysis.cache_keys import most_results
from analysis.criteria import Criterion
from analysis.lazy import pd
from analysis.numbers.arrays import FloatArray, IntArray
from analysis.ranking.experts import keeping_order, scored
from analysis.stats.grid import Grid
from analysis.stats.tables import WeightStats

# Of z ~ N(0, 1): the mean and the deviation of |z|, and the correlation of |z| with z^2, from
# E|z| = sqrt(2 / pi), E|z|^3 = 2 E|z|, Var(z^2) = 2.
_MEAN = sqrt(2 / pi)
_DEVIATION = sqrt(1 - 2 / pi)
_CORRELATION = _MEAN / (_DEVIATION * sqrt(2))
_DRAWS = 20  # of random weights; their mean spread is known to about 5% of itself


def relative(saliency: FloatArray) -> FloatArray:
    """(x - m) / |m| with m the layer's mean; 0 in a constant layer, NaN for absent experts.

    Infinite where experts differ around a mean of exactly 0.
    """
    mean, low, high = (
        of(saliency, axis=1, keepdims=True) for of in (np.nanmean, np.nanmin, np.nanmax)
    )
    # Of equal numbers the mean may differ from them in its last bit.
    is_flat = low == high
    difference = np.where(is_flat, saliency * 0, saliency - mean)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(difference == 0, difference, difference / np.abs(mean))


def separation(
    saliency: FloatArray, grid: Grid, kept: Sequence[int], order: IntArray | None = None
) -> pd.DataFrame:
    """Table `layer, spread, gap`, of saliency relative to the layer's mean.

    `saliency` is (layers, experts), `kept` the experts kept of each layer, `order` those to keep
    first (None: by saliency). spread = largest - smallest; gap = that of the last expert kept -
    that of the first removed, NaN where a layer loses none. Both are 0 where all experts have the
    same saliency.
    """
    values = relative(saliency)
    order = keeping_order(saliency, grid) if order is None else order
    ordered = np.take_along_axis(values, order, axis=1)
    gaps = [
        row[count - 1] - row[count] if 0 < count < layer.num_experts else np.nan
        for layer, row, count in zip(grid.layers, ordered, kept, strict=True)
    ]
    spread = np.nanmax(values, axis=1) - np.nanmin(values, axis=1)
    layers = [layer.index for layer in grid.layers]
    return pd.DataFrame({"layer": layers, "spread": spread, "gap": gaps})


def signed_score(criterion: Criterion, stats: WeightStats) -> FloatArray:
    """(layers, experts) score, negative where the paper prunes the largest; NaN if absent."""
    return stats.grid.fold(criterion.saliency(scored(criterion, stats, "applied")[0]))


def random_weights(stats: WeightStats, seed: int) -> WeightStats:
    """Statistics of independent normal weights in the place of the model's.

    Each matrix has as many as the model's, with the root mean square of its kind in its layer, so
    that experts of a layer differ by chance alone. No weight is drawn: sums of so many are normal,
    with the moments of |w| and w^2.
    """
    table = stats.table
    kinds = table.groupby(["layer", "projection"])[["l2_squared", "numel"]].transform("sum")
    numel = table["numel"].to_numpy(np.float64)
    rms = np.sqrt((kinds["l2_squared"] / kinds["numel"]).to_numpy(np.float64))
    first, second = np.random.default_rng(seed).standard_normal((2, len(table)))
    l1 = rms * (numel * _MEAN + np.sqrt(numel) * _DEVIATION * first)
    square = _CORRELATION * first + sqrt(1 - _CORRELATION**2) * second
    l2_squared = rms**2 * (numel + np.sqrt(2 * numel) * square)
    # Matrices of a few weights: no sums are below 0, and no AIMER above 1.
    l1 = np.maximum(l1, 0)
    l2_squared = np.maximum(l2_squared, l1**2 / numel)
    return replace(stats, table=table.assign(l1=l1, l2_squared=l2_squared))


@most_results(32)
def random_separation(
    criterion: Criterion, stats: WeightStats, kept: Sequence[int]
) -> pd.DataFrame:
    """Table of `separation` of random weights of this shape: the mean of seeded draws."""
    draws = [
        separation(signed_score(criterion, random_weights(stats, seed)), stats.grid, kept)
        for seed in range(_DRAWS)
    ]
    return pd.concat(draws).groupby("layer", as_index=False)[["spread", "gap"]].mean()


@most_results(32)
def random_gaps(criterion: Criterion, stats: WeightStats) -> FloatArray:
    """(layers, experts - 1): `gap` of `random_separation` if a layer keeps 1, 2, ... experts."""
    draws = []
    for seed in range(_DRAWS):
        saliency = signed_score(criterion, random_weights(stats, seed))
        order = keeping_order(saliency, stats.grid)
        ordered = np.take_along_axis(relative(saliency), order, axis=1)
        draws.append(ordered[:, :-1] - ordered[:, 1:])
    gaps: FloatArray = np.mean(draws, axis=0)
    return gaps
