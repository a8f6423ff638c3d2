"""Which of two recipes keeps which expert, as a map on a page."""

from functools import partial

import numpy as np
import streamlit as st

from analysis.ranking.compare import Comparison, CriterionDecision
from app.charts.kept_by import fate_colors
from app.charts.traces import Names, Place
from app.components.expert_map import FULL_LAYERS, MapPanel, expert_map, map_payload
from app.components.expert_map.payload import PAD
from app.session.chosen_expert import choose_on_map


def fates_map(
    comparison: Comparison, names: Names, *, key: str, selected: Place | None = None
) -> None:
    """Draw the map of two decisions in the order of the first; a click chooses an expert."""
    layers = [layer.index for layer in comparison.grid.layers]
    sides = zip("AB", names, (comparison.a, comparison.b), strict=True)
    payload = map_payload(
        layers,
        [_panel(letter, name, side) for letter, name, side in sides],
        arrangement="rank",
        mode="fates",
        selected=selected,
        fates=[fate_colors(dark) for dark in (False, True)],
    )
    with st.container(key=f"{key}.full" if len(layers) >= FULL_LAYERS else None):
        expert_map(payload, key=key, on_select=partial(choose_on_map, key))


def _panel(letter: str, name: str, side: CriterionDecision) -> MapPanel:
    present = side.grid.present
    # The map colours fates, and no scores.
    nothing = np.where(present, 0.0, np.nan)
    inside = np.arange(present.shape[1]) < present.sum(axis=1)[:, None]
    return MapPanel(
        title=letter,
        subtitle=name,
        values=nothing,
        order=np.where(inside, side.order, PAD),
        kept=(present & ~side.pruned).sum(axis=1),
        scores=nothing,
        stays=present & ~side.pruned,
    )
