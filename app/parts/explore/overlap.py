"""Explore, how much the choice depends on the corpus: the 18 variants, the exponents."""

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
from pruning.planning.percents import possible_percents

_CLICKS: Final = "explore.overlap-map.clicks"


def overlap_map_part(context: Context) -> None:
    """The 18 variants."""
    st.markdown(
        f"**Overlap map**: pruned experts that the calibration corpora agree on, at "
        f"{context.sparsity} sparsity. Click a cell to take its exponents."
    )
    if (chart := drawn("overlap-map", context)) is None:
        return
    clicks = st.session_state.get(_CLICKS, 0)
    figure = partial(context.keep, _map_after, chart.table, clicks)
    show_chart(chart, figure=figure, said=True, on_select=_apply_clicked_variant)
    if (exponents := context.ranking_criterion.exponents) is not None:
        st.html(f"<style>{frame_style(exponents, '.st-key-chart-overlap-map')}</style>")


def _map_after(means: pd.DataFrame, clicks: int, *, dark: bool = False) -> go.Figure:
    """The map after so many clicks on it: a figure of its own, in which no cell is selected.

    A second click on a selected cell would say that nothing is.
    """
    return variant_map(means, dark=dark).update_layout(meta=clicks)


def _apply_clicked_variant() -> None:
    """A cell of the map was clicked: take its exponents."""
    chosen = clicked_variant(selection_of("overlap-map"))
    if chosen is not None:
        st.session_state[_CLICKS] = st.session_state.get(_CLICKS, 0) + 1
        apply_exponents(chosen)


def effects_part(context: Context) -> None:
    """What b, alpha and beta each do to the overlap, and the map at several sparsities."""
    compared = replace(context, models=_models_to_show(context))
    st.markdown("**What each exponent does**: mean overlap of the variants that share its value.")
    if show("component-effects", compared) is None:
        return
    st.markdown(
        "**The map at other sparsities**: click a cell to take its exponents and its sparsity."
    )
    show("overlap-maps", compared, on_select=partial(apply_clicked_cell, context.model))


def _models_to_show(context: Context) -> Mapping[str, Mapping[str, Run]] | None:
    """By name, every calibrated model with its runs, where that is chosen."""
    every = data.calibrated_models()
    if len(every) < 2:
        return None
    options = {
        "this": f"Only {literal(context.model.name)}",
        "all": f"All {len(every)} calibrated models",
    }
    return every if switch("Models", "models", options) == "all" else None


def apply_clicked_cell(model: MoEModel) -> None:
    """A cell of the maps at several sparsities was clicked: take its exponents and sparsity."""
    chosen = clicked_cell(selection_of("overlap-maps"))
    if chosen is None:
        return
    exponents, percent = chosen
    apply_exponents(exponents)
    if percent in possible_percents(model):
        st.session_state.update(sparsity_controls(percent))
