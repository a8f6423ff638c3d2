"""Export: the plan, what it needs, the job that writes it, and the proof."""

import streamlit as st

from app.export_parts import plan_part, preflight_part, proof_part, start_part
from app.job_panel import job_panel
from app.plan_data import shown_plan, sizes_of
from app.plan_parts import import_banner, refusal_part
from app.planning import PlanChoice
from app.state import View

view: View = st.session_state["view"]
choice: PlanChoice = st.session_state["plan_choice"]
refusal_part()
shown = shown_plan(view, choice)

if shown is not None:
    import_banner(shown)
    report = sizes_of(view, shown.plan)
    left, right = st.columns(2)
    with left, st.container(border=True):
        plan_part(view, shown, report)
    with right, st.container(border=True):
        ready, options = preflight_part(view, shown, report)
        start_part(view, shown, ready, options)

job_panel()
proof_part(view)
