"""Export: the plan, what it needs, the job that writes it, and the proof."""

import streamlit as st

from app.frame.job_panel import job_panel
from app.parts.export.exports import plan_part, preflight_part, proof_part, start_part
from app.parts.plan.experts import import_banner, refusal_part
from app.parts.plan.neuron_page import neuron_export_page
from app.session.granularity import is_about_neurons
from app.session.plan_data import shown_plan, sizes_of
from app.session.state import View
from pruning.planning.planning import PlanChoice


def expert_export_page(view: View, choice: PlanChoice) -> None:
    """The plan of whole experts, the checks and the start."""
    shown = shown_plan(view, choice)
    if shown is None:
        return
    import_banner(shown)
    report = sizes_of(view, shown.plan)
    left, right = st.columns(2)
    with left, st.container(border=True):
        plan_part(view, shown, report)
    with right, st.container(border=True):
        ready, options = preflight_part(view, shown, report)
        start_part(view, shown, ready, options)


view: View = st.session_state["view"]
refusal_part()
if is_about_neurons():
    neuron_export_page(view, st.session_state["neuron_choice"])
else:
    expert_export_page(view, st.session_state["plan_choice"])
job_panel("export")
proof_part(view)
