"""Evaluate: what pruning costs, as measured here and as the papers report it."""

import streamlit as st

from app.ask_parts import ask_part
from app.benchmark_parts import benchmark_part
from app.controls import switch
from app.evaluate_parts import published_part
from app.job_panel import job_panel
from app.own_results import own_part
from app.state import View
from app.variance_parts import hidden_states_part

_JOBS = {
    "own": ("evaluate", "sweep"),
    "benchmarks": ("benchmark",),
    "hidden": ("variance",),
    "ask": ("ask",),
}

view: View = st.session_state["view"]
source = switch(
    "Source",
    "results",
    {
        "own": "This model",
        "benchmarks": "Benchmarks",
        "hidden": "Hidden states",
        "ask": "Ask both models",
        "papers": "The papers",
    },
)
if source == "papers":
    published_part()
else:
    if source == "own":
        own_part(view)
    elif source == "benchmarks":
        benchmark_part(view)
    elif source == "hidden":
        hidden_states_part(view)
    else:
        ask_part(view)
    job_panel(_JOBS[source])
