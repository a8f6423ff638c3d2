"""Queue a job as a click does: it is said, and the page drawn anew with it."""

import streamlit as st

from analysis.errors import UserError
from app.literal import literal
from app.requests.base import Request
from app.session.job_queue import submit


def queued_key(kind: str) -> str:
    """Where the session notes the job of a kind that it queued last."""
    return f"queued.{kind}"


def queue(request: Request, title: str, command: str) -> None:
    """Queue a job; says why, where it cannot be. The session notes the newest of each kind."""
    try:
        job = submit(request, title=title, command=command)
    except UserError as error:
        st.error(literal(error), icon=":material/error:")
        return
    st.session_state[queued_key(job.kind)] = job.id
    st.toast("Queued", icon=":material/schedule:")
    st.rerun()
