"""Explore, how much the choice depends on the text: the 18 variants, pairs, sparsity, exponents."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import streamlit as st

from analysis.model import MoEModel
from analysis.stats.store import Run
from app.charts.context import Context
from app.charts.overlap_map import clicked_variant
from app.charts.overlap_maps import clicked_cell
from app.frame.charts import selection_of, show
from app.frame.controls import switch
from app.literal import literal
from app.session import data
from app.session.state import apply_exponents
from pruning.planning.percents import possible_percents

_KINDS = {"overlap": "Between texts", "overlap-by-sparsity": "Against sparsity"}


def overlap_tab(context: Context) -> None:
    """The 18 variants beside the texts."""
    left, right = st.columns([3, 2])
    with left, st.container(border=True):
        st.markdown(
            f"**Overlap map**: pruned experts that the calibration texts agree on, at "
            f"{context.sparsity} sparsity. Click a cell to take its exponents."
        )
        show("overlap-map", context, said=True, on_select=apply_clicked_variant)
    with right, st.container(border=True):
        show(switch("Overlap", "overlap", _KINDS), context)


def apply_clicked_variant() -> None:
    """A cell of the map was clicked: take its exponents."""
    chosen = clicked_variant(selection_of("overlap-map"))
    if chosen is not None:
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
        st.session_state["sparsity"] = percent
