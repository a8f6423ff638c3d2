"""Queue a job as a click does: it is said, and the page drawn anew with it."""

import streamlit as st

from analysis.errors import UserError
from app.job_queue import submit
from app.literal import literal
from app.task_requests import Request


def queue(request: Request, title: str, command: str) -> None:
    """Queue a job; says why, where it cannot be."""
    try:
        submit(request, title=title, command=command)
    except UserError as error:
        st.error(literal(error), icon=":material/error:")
        return
    st.toast("Queued", icon=":material/schedule:")
    st.rerun()
