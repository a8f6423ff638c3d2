"""The end of every job form: run button, job, equivalent commands."""

from typing import Any

import streamlit as st

from app.charts.context import Context
from app.frame.notes import show_command
from app.session.data import shown_model
from app.session.job_queue import queue, shown_request
from pruning.planning.make import CurrentPlan
from pruning.requests.base import Request


def queue_button(label: str) -> bool:
    """Draw the submit button of a `st.form` that queues a job."""
    return st.form_submit_button(label, icon=":material/play_arrow:", type="primary")


def offer_job(
    context: Context, request: Request, about: str, *, sent: bool, plan: CurrentPlan | None = None
) -> None:
    """Queue the job if its form was submitted, and show the equivalent commands.

    `about` goes into the title. A plan that the job needs has its own command line.
    """
    made: Any = shown_request(request)
    commands = [made.command()]
    if plan is not None:
        made_by = plan.plan_command(shown_model(context.model))
        commands = [made_by, made.command((plan.file or "plan.json",))]
    if sent:
        queue(request, about, commands[-1])
    show_command("\n".join(commands))
