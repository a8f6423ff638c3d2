"""Compare: two recipes side by side, where they disagree, and by how much."""

import streamlit as st

from app.charts.context import Context
from app.frame.notes import inform, show_command
from app.parts.compare import (
    comparison_metrics,
    conclusion,
    has_statistics,
    listed_experts,
    show_charts,
)
from app.parts.context import draw_page


def compare_page(context: Context) -> Context:
    """The page."""
    if context.by_neuron:
        inform("Compare sets whole experts side by side; choose **Experts** in the sidebar.")
        return context
    if context.criterion is None or not has_statistics(context):
        return context
    conclusion(context)
    comparison_metrics(context.comparison)
    show_charts(context)
    with st.container(border=True):
        listed_experts(context.comparison)
    show_command(context.both.command(), heading="The same from the command line")
    return context


draw_page(compare_page)
