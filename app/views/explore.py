"""Explore: which experts each criterion keeps, and how much that depends on the text."""

from fractions import Fraction
from functools import partial

import streamlit as st

from analysis.ranking.overlap import kept_counts
from analysis.ranking.stratification import rescale
from app.charts.context import Context
from app.charts.listing import CHARTS
from app.components.expert_map import MapPanel, expert_map, map_payload
from app.frame.charts import chart_files
from app.frame.controls import MODES, ORDERS, switch
from app.frame.pages import draw_page
from app.parts.explore.advice import advice_part
from app.parts.explore.bins import bins_part
from app.parts.explore.blend import blend_part
from app.parts.explore.evidence import damage_part, tokens_part
from app.parts.explore.experts import metrics, ranked_pair, separation_part, show_command
from app.parts.explore.neurons import neuron_page
from app.parts.explore.one_expert import expert_part
from app.parts.explore.overlap import effects_part, overlap_tab
from app.parts.explore.paths import paths_part
from app.session.chosen_expert import choose_on_map, chosen_expert
from app.tables.maps import Ranked
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


def _panel(ranked: Ranked, sparsity: Fraction, subtitle: str) -> MapPanel:
    """What `expert_map` draws of a ranking."""
    return MapPanel(
        title=ranked.criterion.label,
        subtitle=subtitle,
        values=rescale(ranked.saliency),
        order=ranked.order,
        kept=kept_counts(ranked.grid, sparsity),
        scores=ranked.score,
    )


def stratification(context: Context, shown: Ranked, beside: Ranked) -> None:
    """The two maps, with the chosen expert marked."""
    with st.container(horizontal=True, horizontal_alignment="distribute"):
        st.markdown(
            "**Expert stratification**: saliency rescaled to 0..1 in each layer; left of the "
            "cut line is kept. Click an expert to pin it, or move with the arrow keys."
        )
        with st.container(horizontal=True, width="content"):
            arrangement = switch("Order", "order", ORDERS)
            mode = switch("Show", "show", MODES)
    fraction = context.fraction
    expert_map(
        map_payload(
            [layer.index for layer in context.model.layers],
            [
                _panel(beside, fraction, context.source_of(beside.criterion)),
                _panel(shown, fraction, context.source_of(shown.criterion)),
            ],
            arrangement=arrangement,
            mode=mode,
            selected=chosen_expert(context.model.layers),
        ),
        key=MAP,
        on_select_change=partial(choose_on_map, MAP),
    )


def explore(context: Context) -> Context:
    """The page."""
    if context.plan.is_atomic:
        neuron_page(context)
    elif (pair := ranked_pair(context)) is not None:
        _experts(context, *pair)
    return context


def _experts(context: Context, shown: Ranked, beside: Ranked) -> None:
    metrics(context, shown, beside)
    with st.container(border=True):
        stratification(context, shown, beside)
        chart_files("stratification", lambda: CHARTS["stratification"].draw(context))
    # Only one is drawn: the others would be sent with every toggle. Not `st.tabs`, whose content
    # takes the browser longer to lay out.
    part = switch("Part", "tab", PARTS)
    if part == "overlap":
        overlap_tab(context)
    elif part == "exponents":
        effects_part(context)
    elif part == "tokens":
        tokens_part(context)
    elif part == "damage":
        damage_part(context)
    elif part == "blend":
        blend_part(context)
    elif part == "cut":
        separation_part(context)
    elif part == "paths":
        paths_part(context)
    elif part == "loss":
        bins_part(context, EXPERT_GRANULARITY)
    elif part == "experts":
        expert_part(context)
    else:
        advice_part(context)
    show_command(context)


draw_page(explore)
