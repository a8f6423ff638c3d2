"""Queue a job as a click does: it is said, and the page drawn anew with it."""

from typing import Any, TypeVar

import streamlit as st

from analysis.errors import UserError
from app.literal import literal
from app.session.data import settings, shown_model, shown_stats_dir
from app.session.job_queue import submit
from app.session.state import View
from pruning.requests.base import Request

Asked = TypeVar("Asked", bound=Request)


def own_model(view: View) -> dict[str, Any]:
    """`model` and `stats_dir` of a request that a job works on."""
    return {"model": str(view.model.checkpoint.path), "stats_dir": settings().stats_dir}


def shown_request(view: View, request: Asked) -> Asked:
    """A request as a command line typed in the working directory would name model and folder."""
    names: dict[str, Any] = {"model": shown_model(view.model)}
    if "stats_dir" in type(request).model_fields:
        names["stats_dir"] = shown_stats_dir()
    shown: Asked = request.model_copy(update=names)
    return shown


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
