"""What every form of a job ends in: its button, the job, and the commands that do the same."""

from typing import Any

import streamlit as st

from app.charts.context import Context
from app.frame.notes import show_command
from app.session.data import shown_model
from app.session.job_queue import queue, shown_request
from pruning.planning.make import CurrentPlan
from pruning.requests.base import Request


def queue_button(label: str) -> bool:
    """Draw the button of a `st.form` that queues a job; whether it was pressed."""
    return st.form_submit_button(label, icon=":material/play_arrow:", type="primary")


def offer_job(
    context: Context, request: Request, about: str, *, sent: bool, plan: CurrentPlan | None = None
) -> None:
    """Queue the job where its form was sent, and show the command lines that do the same.

    `about` is what its title names. A plan that the job works on has a command line of its own.
    """
    made: Any = shown_request(request)
    commands = [made.command()]
    if plan is not None:
        made_by = plan.plan_command(shown_model(context.model))
        commands = [made_by, made.command((plan.file or "plan.json",))]
    if sent:
        queue(request, about, commands[-1])
    show_command("\n".join(commands))
