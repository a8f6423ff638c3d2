"""Export: the last result, the plan, its checks, the job that writes it."""

import streamlit as st

from app.charts.context import Context
from app.frame.job_panel import job_panel
from app.jobs.model import ACTIVE
from app.parts.context import draw_page
from app.parts.export import finished_part, form_part, form_place, plan_part
from app.parts.plan.experts import refusal_part
from app.parts.plan.neurons import neuron_export_page
from app.session.job_queue import job_store
from app.session.plan_data import sizes_of


def export_page(context: Context) -> Context:
    """The page."""
    refusal_part()
    counts = job_store().counts(("export",))
    if is_writing := any(state in counts for state in ACTIVE):
        job_panel("export")
    if (current := context.shown) is None:
        pass  # the plan bar shows why
    elif context.by_neuron:
        neuron_export_page(context, current)
    else:
        report = sizes_of(context, current.plan)
        is_written = finished_part(context, current.plan)
        form_column, plan_column = st.columns(2)
        with form_column, form_place(is_written=is_written):
            choice = form_part(context, current, report)
        with plan_column, st.container(border=True):
            plan_part(context, current, report, choice)
    if not is_writing:
        job_panel("export")
    return context


draw_page(export_page)
