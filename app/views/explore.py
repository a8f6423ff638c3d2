"""Explore: which experts each criterion keeps, and how much that depends on the text."""

import streamlit as st

from app.components.expert_map import expert_map, map_payload
from app.controls import MODES, ORDERS, switch
from app.explore_parts import (
    apply_clicked_variant,
    metrics,
    needed_stats,
    overlap_part,
    separation_part,
    show_command,
    variant_part,
)
from app.maps import panel, rank
from app.state import View, chosen_baseline

view: View = st.session_state["view"]

if view.criterion is None:
    st.info(
        "The variant (1, 0, 0) gives every routed expert the score 1, so it ranks nothing. Choose "
        "b = 0, or another exponent for the gate or the activation.",
        icon=":material/info:",
    )
    st.stop()
stats = needed_stats(view, view.criterion)
if stats is None:
    st.stop()
baseline_stats = needed_stats(view, chosen_baseline())
if baseline_stats is None:
    st.stop()

shown = rank(view.criterion, stats, view.gate)
beside = rank(chosen_baseline(), baseline_stats, view.gate)
metrics(view, shown, beside)

with st.container(border=True):
    with st.container(horizontal=True, horizontal_alignment="distribute"):
        st.markdown(
            "**Expert stratification**: saliency rescaled to 0..1 in each layer; left of the cut "
            "line is kept. Click an expert to pin it, or move with the arrow keys."
        )
        with st.container(horizontal=True, width="content"):
            arrangement = switch("Order", "order", ORDERS)
            mode = switch("Show", "show", MODES)
    fraction = view.request(view.criterion).fraction
    expert_map(
        map_payload(
            [layer.index for layer in view.model.layers],
            [
                panel(beside, fraction, view.source_of(beside.criterion)),
                panel(shown, fraction, view.source_of(shown.criterion)),
            ],
            arrangement=arrangement,
            mode=mode,
            selected=None,
        ),
        key="explore.map",
    )

left, right = st.columns([3, 2])
with left, st.container(border=True):
    variant_part(view, on_select=apply_clicked_variant)
with right, st.container(border=True):
    overlap_part(view)
separation_part(view, (beside, shown))
show_command(view)
