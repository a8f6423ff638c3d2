"""Export: the plan, what it needs, the job that writes it, and the proof."""

import streamlit as st

from analysis.errors import UserError
from app.data import settings
from app.explore_parts import needed_stats
from app.export_parts import plan_part, preflight_part, start_part
from app.job_panel import job_panel
from app.selection import select
from app.state import View

view: View = st.session_state["view"]

if view.criterion is None:
    st.info("The variant (1, 0, 0) ranks nothing; choose other exponents.", icon=":material/info:")
elif needed_stats(view, view.criterion) is not None:
    try:
        selection = select(view.request(view.criterion), view.model, settings().store)
        plan = selection.plan()
    except UserError as error:
        st.error(str(error), icon=":material/error:")
    else:
        left, right = st.columns(2)
        with left, st.container(border=True):
            plan_part(view, selection, plan)
        with right, st.container(border=True):
            ready = preflight_part(view, plan)
            start_part(view, selection, ready)

job_panel()
