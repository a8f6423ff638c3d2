"""Start: savings and loss of the plan on screen; below, its data."""

import streamlit as st

from app.charts.context import Context
from app.jobs.model import ACTIVE
from app.pages.start.finding import finding_part
from app.pages.start.outline import outline_form
from app.pages.start.statistics import calibrate_form, checks, runs_table, weights_button
from app.session.job_queue import job_store
from app.widgets.job_panel import job_panel
from app.widgets.notes import cannot_run


def draw(context: Context) -> None:
    """The page."""
    if context.shown is not None:
        finding_part(context, context.shown)
    # Once open for a job, the part stays open: the result of the job is what one waits for there.
    if any(state in ACTIVE for state in job_store().counts()):
        st.session_state["start.jobs_seen"] = True
    has_jobs = "start.jobs_seen" in st.session_state
    with st.expander("Data and jobs", expanded=context.shown is None or has_jobs):
        runs_table(context)
        checks(context)
        if not cannot_run(context.model):
            form_column, weights_column = st.columns([3, 2])
            with form_column, st.container(border=True):
                calibrate_form(context)
            with weights_column, st.container(border=True):
                weights_button(context)
        with st.container(border=True):
            outline_form()
        job_panel()
