"""Explore: which experts each criterion keeps, and how much that depends on the text."""

from collections.abc import Callable
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
from app.parts.explore.experts import metrics, plan_command, ranked_pair, separation_part
from app.parts.explore.neurons import neuron_page
from app.parts.explore.one_expert import expert_part
from app.parts.explore.overlap import effects_part, overlap_tab
from app.parts.explore.paths import paths_part
from app.session.chosen_expert import choose_on_map, chosen_expert
from app.tables.ranked import Ranked
from pruning.plan import EXPERT_GRANULARITY

MAP = "explore.map"
Part = Callable[[Context], None]
PARTS: dict[str, tuple[str, Part]] = {
    "overlap": ("Overlap", overlap_tab),
    "exponents": ("Exponents", effects_part),
    "tokens": ("Tokens", tokens_part),
    "damage": ("Damage", damage_part),
    "blend": ("Blend", blend_part),
    "cut": ("Cut", separation_part),
    "paths": ("Paths", paths_part),
    "loss": ("Score and loss", partial(bins_part, granularity=EXPERT_GRANULARITY)),
    "experts": ("Experts", expert_part),
    "advice": ("Which criterion?", advice_part),
}


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
    panels = [
        MapPanel(
            title=each.criterion.label,
            subtitle=context.source_of(each.criterion),
            values=rescale(each.saliency),
            order=each.order,
            kept=kept_counts(each.grid, context.fraction),
            scores=each.score,
        )
        for each in (beside, shown)
    ]
    payload = map_payload(
        [layer.index for layer in context.model.layers],
        panels,
        arrangement=arrangement,
        mode=mode,
        selected=chosen_expert(context.model.layers),
    )
    expert_map(payload, key=MAP, on_select_change=partial(choose_on_map, MAP))


def explore(context: Context) -> Context:
    """The page."""
    if context.plan.is_atomic:
        neuron_page(context)
    elif (pair := ranked_pair(context)) is not None:
        metrics(context, *pair)
        with st.container(border=True):
            stratification(context, *pair)
            chart_files("stratification", lambda: CHARTS["stratification"].draw(context))
        # Only one is drawn: the others would be sent with every toggle. Not `st.tabs`, whose
        # content takes the browser longer to lay out.
        part = switch("Part", "tab", {name: words for name, (words, _) in PARTS.items()})
        PARTS[part][1](context)
        plan_command(context)
    return context


draw_page(explore)
