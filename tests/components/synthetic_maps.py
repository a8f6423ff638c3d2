"""Expert tables with known structure, for tests and for the script that the browser test drives."""

import numpy as np
from numpy.typing import NDArray

from app.components.expert_map.payload import MapPanel


def panel_from_scores(
    title: str,
    scores: NDArray[np.float64],
    kept: int | NDArray[np.int64],
    *,
    prune_largest: bool = False,
    subtitle: str = "",
) -> MapPanel:
    """A panel as the pages make it: NaN scores stand for experts that a layer does not have."""
    saliency = -scores if prune_largest else scores
    present = np.isfinite(saliency)
    low = np.nanmin(saliency, axis=1, keepdims=True)
    span = np.nanmax(saliency, axis=1, keepdims=True) - low
    values = np.where(span > 0, (saliency - low) / np.where(span > 0, span, 1), 0 * saliency)
    order = np.argsort(np.where(present, -saliency, np.inf), axis=1, kind="stable")
    order = np.where(np.arange(scores.shape[1]) < present.sum(axis=1)[:, None], order, -1)
    kept = np.broadcast_to(np.asarray(kept), scores.shape[:1]).astype(np.int64)
    return MapPanel(title, subtitle, values, order, kept, scores)


def magnitude_and_aimer(
    num_layers: int, num_experts: int, kept: int | NDArray[np.int64]
) -> tuple[MapPanel, MapPanel]:
    """Two criteria that agree in part; AIMER's scores are close together and prune the largest."""
    rng = np.random.default_rng(7)
    shape = (num_layers, num_experts)
    quality = rng.normal(size=shape)
    tail = rng.uniform(0.3, 1.6, size=(num_layers, 1))
    magnitude = 0.012 * np.exp(tail * (0.8 * quality + 0.6 * rng.normal(size=shape)))
    aimer = 0.79 - 0.004 * (0.6 * quality + 0.8 * rng.normal(size=shape))
    return (
        panel_from_scores("Magnitude", magnitude, kept, subtitle="smallest pruned"),
        panel_from_scores("AIMER", aimer, kept, prune_largest=True, subtitle="largest pruned"),
    )
