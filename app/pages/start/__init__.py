"""Start: savings and loss of the plan on screen; below, its data."""

import streamlit as st

from app.jobs.model import ACTIVE
from app.loaded import Loaded
from app.pages.start.finding import finding_part
from app.pages.start.outline import outline_form
from app.pages.start.statistics import calibrate_form, checks, runs_table, weights_button
from app.pages.start.steps import models_part, steps_part
from app.session.job_queue import job_store
from app.widgets.job_panel import job_panel
from app.widgets.notes import cannot_run


def draw(loaded: Loaded) -> None:
    """The page."""
    models_part(loaded)
    if loaded.shown is None or not loaded.study.losses:
        st.title("What does pruning save, and what does it cost?", anchor=False)
        steps_part(loaded)
    else:
        finding_part(loaded, loaded.shown)
        steps_part(loaded)
    # Once open for a job, the part stays open: the result of the job is what one waits for there.
    if any(state in ACTIVE for state in job_store().counts()):
        st.session_state["start.jobs_seen"] = True
    has_jobs = "start.jobs_seen" in st.session_state
    with st.expander("Data and jobs", expanded=has_jobs):
        runs_table(loaded)
        checks(loaded)
        if not cannot_run(loaded.model):
            form_column, weights_column = st.columns([3, 2])
            with form_column, st.container(border=True):
                calibrate_form(loaded)
            with weights_column, st.container(border=True):
                weights_button(loaded)
        with st.container(border=True):
            outline_form()
        job_panel()
