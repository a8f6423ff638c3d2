"""Start: which models have statistics, what to do next, and the form that collects more."""

import streamlit as st

from app.charts.context import Context
from app.frame.job_panel import job_panel
from app.frame.pages import draw_page
from app.parts.start.overview import calibrate_form, checks, runs_table, weights_button


def start(context: Context) -> Context:
    """The page."""
    st.markdown(
        "A Mixture-of-Experts model keeps every expert in memory, though each token uses few. "
        "See which experts each criterion would drop, how far that depends on the calibration "
        "text, then export a smaller checkpoint that loads."
    )
    with st.container(horizontal=True):
        st.page_link("views/explore.py", label="Explore the experts", icon=":material/grid_on:")
        st.page_link("views/evaluate.py", label="What would I lose?", icon=":material/insights:")
        st.page_link(
            "views/export.py", label="Export a pruned checkpoint", icon=":material/output:"
        )
    runs_table(context)
    checks(context)
    left, right = st.columns([3, 2])
    with left, st.container(border=True):
        calibrate_form(context)
    with right, st.container(border=True):
        weights_button(context)
    job_panel()
    return context


draw_page(start)
