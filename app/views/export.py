"""Export: the plan, what it needs, the job that writes it, and the proof."""

from dataclasses import replace

import streamlit as st

from app.charts.context import Context
from app.frame.job_panel import job_panel
from app.frame.pages import draw_page
from app.parts.export.exports import plan_part, preflight_part, proof_part, start_part
from app.parts.plan.experts import import_banner, refusal_part
from app.parts.plan.neurons import neuron_export_page
from app.session.plan_data import shown_plan, sizes_of


def export(context: Context) -> Context:
    """The page."""
    refusal_part()
    if context.plan.is_atomic:
        neuron_export_page(context)
    elif (shown := shown_plan(context)) is not None:
        context = replace(context, shown=shown)
        import_banner(shown)
        report = sizes_of(context, shown.plan)
        left, right = st.columns(2)
        with left, st.container(border=True):
            plan_part(context, shown, report)
        with right, st.container(border=True):
            ready, options = preflight_part(context, shown, report)
            start_part(context, shown, ready, options)
    job_panel("export")
    proof_part(context)
    return context


draw_page(export)
