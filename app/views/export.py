"""Export: the plan, what it needs, the job that writes it, and the proof."""

from dataclasses import replace

import streamlit as st

from app.charts.context import Context
from app.frame.job_panel import job_panel
from app.frame.pages import draw_page
from app.parts.export.exports import plan_part, preflight_part, proof_part, start_part
from app.parts.plan.experts import import_banner, refusal_part
from app.parts.plan.neuron_page import neuron_export_page
from app.session.plan_data import shown_plan, sizes_of
from pruning.planning.planning import CurrentPlan


def export(context: Context) -> Context:
    """The page."""
    refusal_part()
    if context.neurons is not None:
        neuron_export_page(context, context.neurons)
    elif (shown := shown_plan(context)) is not None:
        context = replace(context, shown=shown)
        _export_of_experts(context, shown)
    job_panel("export")
    proof_part(context)
    return context


def _export_of_experts(context: Context, shown: CurrentPlan) -> None:
    """The plan of whole experts, the checks and the start."""
    import_banner(shown)
    report = sizes_of(context, shown.plan)
    left, right = st.columns(2)
    with left, st.container(border=True):
        plan_part(context, shown, report)
    with right, st.container(border=True):
        ready, options = preflight_part(context, shown, report)
        start_part(context, shown, ready, options)


draw_page(export)
