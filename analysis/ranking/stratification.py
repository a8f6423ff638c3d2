"""Stratification: how clearly a criterion separates experts (arXiv:2603.18492, Fig. 2)."""

from __future__ import annotations

import numpy as np

from analysis.arrays import FloatArray, IntArray
from analysis.lazy import pd
from analysis.ranking.experts import keeping_order
from analysis.stats.grid import Grid

BAND = 0.05  # half width of the ambiguous band around the boundary, in rescaled saliency


def rescale(saliency: FloatArray) -> FloatArray:
    """Saliency rescaled to [0, 1] per layer; 0 in a constant layer, NaN for absent experts."""
    low = np.nanmin(saliency, axis=1, keepdims=True)
    span = np.nanmax(saliency, axis=1, keepdims=True) - low
    flat = span <= 0
    return np.where(flat & ~np.isnan(saliency), 0.0, (saliency - low) / np.where(flat, 1.0, span))


def separation(saliency: FloatArray, grid: Grid, kept: IntArray) -> pd.DataFrame:
    """Table `layer, kept, gap, boundary, band`: how clear the cut between kept and pruned is.

    With v the sorted rescaled saliency and c experts kept, gap = v[c-1] - v[c], boundary is their
    midpoint and band the share of experts within 0.05 of it. A constant layer has gap 0 and band
    1; a layer that loses no expert has no boundary (NaN) and band 0.
    """
    values = rescale(saliency)
    ordered = np.take_along_axis(values, keeping_order(values), axis=1)
    rows = []
    for layer, row, count in zip(grid.layers, ordered, kept.tolist(), strict=True):
        present = row[: layer.num_experts]
        if count >= layer.num_experts:
            rows.append((layer.index, count, np.nan, np.nan, 0.0))
            continue
        gap = present[count - 1] - present[count]
        boundary = (present[count - 1] + present[count]) / 2
        band = float((np.abs(present - boundary) <= BAND).mean())
        rows.append((layer.index, count, float(gap), float(boundary), band))
    return pd.DataFrame(rows, columns=["layer", "kept", "gap", "boundary", "band"])
