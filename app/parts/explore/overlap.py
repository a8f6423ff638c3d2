"""Explore, dependence on the corpus: the 18 variants and their exponents."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Final

import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from analysis.model import MoEModel
from analysis.stats.store import Run
from app.charts.context import Context
from app.charts.overlap_map import clicked_variant, frame_style, variant_map
from app.charts.overlap_maps import clicked_cell
from app.frame.charts import drawn, selection_of, show, show_chart
from app.frame.controls import switch
from app.literal import literal
from app.session import data
from app.session.plan_state import sparsity_controls
from app.session.state import apply_exponents
from pruning.planning.choice import possible_percents

_CLICKS: Final = "explore.overlap-map.clicks"


def overlap_map_part(context: Context) -> None:
    """The overlap map of the 18 variants."""
    st.markdown(
        f"**Overlap map**: pruned experts that the calibration corpora agree on, at "
        f"{context.sparsity} sparsity. Click a cell to apply its exponents."
    )
    if (chart := drawn("overlap-map", context)) is None:
        return
    clicks = st.session_state.get(_CLICKS, 0)
    figure = partial(context.keep, _map_after, chart.table, clicks)
    show_chart(chart, figure=figure, said=True, on_select=_apply_clicked_variant)
    if (exponents := context.ranking_criterion.exponents) is not None:
        st.html(f"<style>{frame_style(exponents, '.st-key-chart-overlap-map')}</style>")


def _map_after(means: pd.DataFrame, clicks: int, *, dark: bool = False) -> go.Figure:
    """The map after this many clicks: a new figure without a selected cell,

    because a second click on a selected cell would deselect it.
    """
    return variant_map(means, dark=dark).update_layout(meta=clicks)


def _apply_clicked_variant() -> None:
    """Apply the exponents of the cell that was clicked."""
    chosen = clicked_variant(selection_of("overlap-map"))
    if chosen is not None:
        st.session_state[_CLICKS] = st.session_state.get(_CLICKS, 0) + 1
        apply_exponents(chosen)


def effects_part(context: Context) -> None:
    """The effect of b, alpha and beta on the overlap, and the map at several sparsities."""
    compared = replace(context, models=_models_to_show(context))
    st.markdown("**What each exponent does**: mean overlap of the variants that share its value.")
    if show("component-effects", compared) is None:
        return
    st.markdown(
        "**The map at other sparsities**: click a cell to apply its exponents and sparsity."
    )
    show("overlap-maps", compared, on_select=partial(apply_clicked_cell, context.model))


def _models_to_show(context: Context) -> Mapping[str, Mapping[str, Run]] | None:
    """Every calibrated model with its runs, by name, if chosen."""
    every = data.calibrated_models()
    if len(every) < 2:
        return None
    options = {
        "this": f"Only {literal(context.model.name)}",
        "all": f"All {len(every)} calibrated models",
    }
    return every if switch("Models", "models", options) == "all" else None


def apply_clicked_cell(model: MoEModel) -> None:
    """Apply the exponents and sparsity of the clicked cell."""
    chosen = clicked_cell(selection_of("overlap-maps"))
    if chosen is None:
        return
    exponents, percent = chosen
    apply_exponents(exponents)
    if percent in possible_percents(model):
        st.session_state.update(sparsity_controls(percent))
