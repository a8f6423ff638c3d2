"""Explore: which experts each criterion keeps, and how much that depends on the text."""

from functools import partial

import streamlit as st

from app.components.expert_map import expert_map, map_payload
from app.frame.controls import MODES, ORDERS, switch
from app.parts.explore.advice import advice_part
from app.parts.explore.bins import bins_part
from app.parts.explore.blend import blend_part
from app.parts.explore.evidence import damage_part, tokens_part
from app.parts.explore.experts import map_files, metrics, ranked_pair, separation_part, show_command
from app.parts.explore.neurons import neuron_page
from app.parts.explore.one_expert import expert_part
from app.parts.explore.overlap import (
    apply_clicked_variant,
    effects_part,
    overlap_part,
    variant_part,
)
from app.parts.explore.paths import paths_part
from app.session.chosen_expert import choose_on_map, chosen_expert
from app.session.granularity import is_about_neurons
from app.session.state import View
from app.tables.maps import Ranked, panel
from pruning.plan import EXPERT_GRANULARITY

MAP = "explore.map"
PARTS = {
    "overlap": "Overlap",
    "exponents": "Exponents",
    "tokens": "Tokens",
    "damage": "Damage",
    "blend": "Blend",
    "cut": "Cut",
    "paths": "Paths",
    "loss": "Score and loss",
    "experts": "Experts",
    "advice": "Which criterion?",
}


def stratification(view: View, shown: Ranked, beside: Ranked) -> None:
    """The two maps, with the chosen expert marked."""
    with st.container(horizontal=True, horizontal_alignment="distribute"):
        st.markdown(
            "**Expert stratification**: saliency rescaled to 0..1 in each layer; left of the "
            "cut line is kept. Click an expert to pin it, or move with the arrow keys."
        )
        with st.container(horizontal=True, width="content"):
            arrangement = switch("Order", "order", ORDERS)
            mode = switch("Show", "show", MODES)
    fraction = view.request(shown.criterion).fraction
    expert_map(
        map_payload(
            [layer.index for layer in view.model.layers],
            [
                panel(beside, fraction, view.source_of(beside.criterion)),
                panel(shown, fraction, view.source_of(shown.criterion)),
            ],
            arrangement=arrangement,
            mode=mode,
            selected=chosen_expert(view.model.layers),
        ),
        key=MAP,
        on_select_change=partial(choose_on_map, MAP),
    )


def overlap_tab(view: View) -> None:
    """The 18 variants beside the texts."""
    left, right = st.columns([3, 2])
    with left, st.container(border=True):
        variant_part(view, on_select=apply_clicked_variant)
    with right, st.container(border=True):
        overlap_part(view)


def explore(view: View, shown: Ranked, beside: Ranked) -> None:
    """The page."""
    metrics(view, shown, beside)
    with st.container(border=True):
        stratification(view, shown, beside)
        map_files(view, shown, beside)
    # Only one is drawn: the others would be sent with every toggle. Not `st.tabs`, whose content
    # takes the browser longer to lay out.
    part = switch("Part", "tab", PARTS)
    if part == "overlap":
        overlap_tab(view)
    elif part == "exponents":
        effects_part(view)
    elif part == "tokens":
        tokens_part(view)
    elif part == "damage":
        damage_part(view)
    elif part == "blend":
        blend_part(view, shown.criterion)
    elif part == "cut":
        separation_part(view, (beside, shown))
    elif part == "paths":
        paths_part(view)
    elif part == "loss":
        bins_part(view, EXPERT_GRANULARITY)
    elif part == "experts":
        expert_part(view)
    else:
        advice_part(view)
    show_command(view)


# Not `st.stop()`: what the entry script draws after the page would be missing.
current: View = st.session_state["view"]
if is_about_neurons():
    neuron_page(current)
elif (pair := ranked_pair(current)) is not None:
    explore(current, *pair)
