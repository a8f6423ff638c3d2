"""Evaluate: what pruning costs, as measured here and as the papers report it."""

import streamlit as st

from app.controls import switch
from app.evaluate_parts import published_part
from app.job_panel import job_panel
from app.own_results import own_part
from app.state import View

view: View = st.session_state["view"]
if switch("Source", "results", {"own": "This model", "papers": "The papers"}) == "own":
    own_part(view)
    job_panel()
else:
    published_part()
