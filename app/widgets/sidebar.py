"""The sidebar: model, calibration corpus, sparsity, running jobs."""

from collections.abc import Iterable

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from analysis.errors import UserError
from app.choices import BLEND
from app.jobs.model import ACTIVE
from app.literal import literal
from app.session.controls import USUAL
from app.session.data import chosen_model, model_choices, runs_with_routing
from app.session.job_queue import job_store
from app.session.link import open_link
from app.session.state import (
    EQUAL_SHARE,
    Page,
    criterion_in,
    possible_steps,
    share_key,
)
from app.tables.costs import experts_text
from app.widgets.controls import draw_controls, say_unknown
from pruning.plan.sizes import format_bytes
from pruning.planning.choice import possible_shrinks


def _budget_controls(page: Page) -> None:
    state, usual = st.session_state, USUAL["sparsity"]
    if not (page.by_neuron or possible_shrinks(page.model)):
        state["budget"] = USUAL["budget"]
    if state["sparsity"] not in (steps := possible_steps(page)):
        state["sparsity"] = max(percent for percent in steps if percent <= usual)
    draw_controls("budget", page)


def _corpus_control(page: Page) -> None:
    if not page.corpora:
        st.text("No calibration yet.")
        return
    draw_controls("corpus", page)
    criterion = criterion_in(st.session_state)
    if not page.by_neuron and criterion is not None and criterion.source != "routed":
        st.caption(f"{criterion.label} reads no corpus.")
    if st.session_state["corpus"] == BLEND:
        blend_sliders(page.corpora)


def blend_sliders(corpora: Iterable[str]) -> None:
    """The share of each corpus in the blend."""
    for corpus in corpora:
        st.session_state.setdefault(share_key(corpus), EQUAL_SHARE)
        st.slider(
            f"Share of {literal(corpus)}",
            0,
            100,
            key=share_key(corpus),
            persist_state="session",
            help="Its weight in the blend, relative to the other corpora.",
        )


def model_and_calibration(bar: DeltaGenerator) -> Page:
    """Draw the sidebar; return on what the controls are read.

    What the URL asks for and does not exist is said in `bar`.
    """
    with st.sidebar:
        st.markdown("**MoE Prune Studio**")
        choices = {choice.name: choice for choice in model_choices()}
        if not choices:
            raise UserError(
                "There is no model to show. Build the demo with `python -m tools.demo.build`, or "
                "start with `moeprune app --models-root FOLDER`."
            )
        say_unknown("Model", "model", list(choices), place=bar)
        name = st.selectbox("Model", list(choices), key="model", bind="query-params")
        model = chosen_model(choices[name])
        st.text(
            f"{len(model.layers)} layers x {experts_text(model.layers)} experts, "
            f"top-{model.layers[0].top_k}, "
            f"{format_bytes(model.checkpoint.nbytes)} {model.dtype.lower()}"
        )
        corpora = list(runs_with_routing(model))
        open_link(model, corpora)
        page = Page(st.session_state, model, corpora)
        draw_controls("granularity", page)
        _corpus_control(page)
        _budget_controls(page)
        counts = job_store().counts()
        if active := [f"{counts[state]:,} {state}" for state in ACTIVE if state in counts]:
            number, _, state = active[0].partition(" ")
            active[0] = f"{number} {'job' if number == '1' else 'jobs'} {state}"
            st.badge(", ".join(active), icon=":material/sync:", color="blue")
    return page
