"""The sidebar: model, calibration corpus, sparsity, running jobs, link to this view."""

from collections.abc import Iterable, Sequence
from urllib.parse import urlencode

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from analysis.errors import UserError
from analysis.model.moe_model import MoEModel
from app.choices import BLEND
from app.jobs.model import ACTIVE
from app.literal import literal
from app.session.data import chosen_model, model_choices, runs_with_routing
from app.session.job_queue import job_store
from app.session.link import open_link
from app.session.plan_state import lasting_input, plan_input
from app.session.state import (
    EQUAL_SHARE,
    OPTIONS,
    USUAL,
    corpus_options,
    criterion_in,
    is_about_neurons,
    share_key,
    slider_steps,
)
from app.tables.costs import experts_text
from app.widgets.notes import show_command
from app.widgets.url_values import say_unknown
from pruning.plan.sizes import format_bytes
from pruning.planning.choice import EXPERT_BUDGETS, possible_shrinks


def granularity_control() -> None:
    """Draw the switch, before the controls that depend on it."""
    plan_input(
        st.segmented_control,
        "Granularity",
        OPTIONS["granularity"],
        key="granularity",
        required=True,
        format_func=lambda name: f"{name.capitalize()}s",
        help="**Experts**: remove whole experts.  \n"
        "**Neurons**: make experts narrower; a neuron is a row of gate and up and a column of "
        "down.",
    )


def budget_controls(model: MoEModel) -> None:
    """Draw the unit of the budget of experts, and the slider."""
    by_neuron, state = is_about_neurons(), st.session_state
    if not by_neuron:
        has_shares = bool(possible_shrinks(model))
        if state["budget"] not in EXPERT_BUDGETS or not has_shares:
            state["budget"] = "sparsity"
        plan_input(
            st.segmented_control,
            "Remove a share of",
            list(EXPERT_BUDGETS),
            key="budget",
            required=True,
            format_func=EXPERT_BUDGETS.__getitem__,
            disabled=not has_shares,
            help="**Experts** of each layer, or **bytes** of the checkpoint: the fewest experts "
            "that save this much, with the uniform schedule an equal number of each layer.",
        )
    options = slider_steps(model, state["budget"], by_neuron=by_neuron)
    if state["sparsity"] not in options:
        state["sparsity"] = max(percent for percent in options if percent <= USUAL["sparsity"])
    lasting_input(
        st.select_slider,
        "Sparsity",
        options,
        key="sparsity",
        format_func=lambda value: f"{value}%",
        help="How much is pruned.",
    )


def _corpus_control(corpora: Sequence[str]) -> None:
    if not corpora:
        st.text("No calibration yet.")
        return
    options = corpus_options(corpora)
    if st.session_state.get("corpus") not in options:
        st.session_state["corpus"] = options[0]
    lasting_input(
        st.pills,
        "Calibration corpus",
        options,
        key="corpus",
        required=True,
        format_func=literal,
        help="Its statistics rank the experts; (blend) mixes all.",
    )
    criterion = criterion_in(st.session_state)
    if not is_about_neurons() and criterion is not None and criterion.source != "routed":
        st.caption(f"{criterion.label} reads no corpus.")
    if st.session_state["corpus"] == BLEND:
        blend_sliders(corpora)


def blend_sliders(corpora: Iterable[str]) -> None:
    """The share of each corpus in the blend."""
    for corpus in corpora:
        st.session_state.setdefault(share_key(corpus), EQUAL_SHARE)
        lasting_input(
            st.slider,
            f"Share of {literal(corpus)}",
            0,
            100,
            key=share_key(corpus),
            help="Its weight in the blend, relative to the other corpora.",
        )


def model_and_calibration(bar: DeltaGenerator) -> tuple[MoEModel, list[str]]:
    """Draw the sidebar; return the model and its calibrated corpora.

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
        granularity_control()
        _corpus_control(corpora)
        budget_controls(model)
        counts = job_store().counts()
        if active := [f"{counts[state]:,} {state}" for state in ACTIVE if state in counts]:
            number, _, state = active[0].partition(" ")
            active[0] = f"{number} {'job' if number == '1' else 'jobs'} {state}"
            st.badge(", ".join(active), icon=":material/sync:", color="blue")
    return model, corpora


def copy_link() -> None:
    """The URL of this view; drawn last, because the page's controls change it."""
    with st.sidebar, st.popover("Copy link", icon=":material/link:", width="stretch"):
        parameters = {name: st.query_params.get_all(name) for name in st.query_params}
        query = urlencode(parameters, doseq=True)
        address = (st.context.url or "").partition("?")[0]
        st.text("This URL opens the same view:")
        show_command(f"{address}?{query}" if query else address)
