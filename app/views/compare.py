"""Compare: two recipes side by side, where they disagree, and by how much."""

import streamlit as st

from app.charts.context import Context
from app.frame.pages import draw_page
from app.parts.compare.recipes import (
    charts,
    has_statistics,
    listed_experts,
    metrics,
    rank_flow,
    show_charts,
    show_command,
)


def compare(context: Context) -> Context:
    """The page."""
    has_a, has_b = (has_statistics(context, each) for each in (context.both.a, context.both.b))
    if not (has_a and has_b):
        return context
    selections = (context.first, context.second)
    comparison = context.comparison
    metrics(comparison)
    show_charts(charts(comparison, selections))
    with st.container(border=True):
        listed_experts(comparison)
    with st.container(border=True):
        rank_flow(comparison, selections)
    show_command(context.both)
    return context


draw_page(compare)
