"""The sidebar: model, calibration text, sparsity, running jobs, link to this view."""

from urllib.parse import urlencode

import streamlit as st

from analysis.errors import UserError
from analysis.model import MoEModel
from app.data import ModelChoice, load_model, model_choices, routed_runs
from app.job_queue import job_store
from app.state import DEFAULTS, SPARSITY_STEP, View, chosen_criterion, chosen_gate, exponents
from pruning.sizes import format_bytes


def _choose_model() -> MoEModel:
    choices = {choice.name: choice for choice in model_choices()}
    if not choices:
        raise UserError(
            "There is no model to show. Build the demo with `python -m analysis.demo.build`, or "
            "start with `moeprune app --models-root FOLDER`."
        )
    name = st.selectbox("Model", list(choices), key="model", bind="query-params")
    choice: ModelChoice = choices[name]
    return load_model(choice)


def _facts(model: MoEModel) -> str:
    counts = sorted({layer.num_experts for layer in model.layers})
    experts = "-".join(str(count) for count in {counts[0], counts[-1]})
    return (
        f"{len(model.layers)} layers x {experts} experts, top-{model.layers[0].top_k}, "
        f"{format_bytes(model.checkpoint.nbytes)} {model.dtype.lower()}"
    )


def _sparsity(model: MoEModel) -> int:
    # A router needs top_k experts, so higher sparsities are not offered.
    most = min((layer.num_experts - layer.top_k) / layer.num_experts for layer in model.layers)
    options = list(range(0, int(most * 100) + 1, SPARSITY_STEP))
    usual = min(int(DEFAULTS["sparsity"]), options[-1])
    if st.session_state.get("sparsity", usual) not in options:
        st.session_state["sparsity"] = usual
    return int(
        st.select_slider(
            "Sparsity",
            options,
            value=usual,
            key="sparsity",
            bind="query-params",
            format_func=lambda value: f"{value}%",
            help="Share of the experts of each layer that is removed.",
        )
    )


def model_and_calibration() -> View:
    """Draw the sidebar; what it says.

    Raises:
        UserError: no model, or one that cannot be used.
    """
    with st.sidebar:
        st.markdown("#### MoE Prune Studio")
        model = _choose_model()
        st.text(_facts(model))
        runs = routed_runs(model)
        corpus = ""
        if runs:
            corpus = st.pills(
                "Calibration",
                list(runs),
                key="corpus",
                bind="query-params",
                required=True,
                default=next(iter(runs)),
                help="The text whose statistics rank the experts.",
            )
        else:
            st.text("No calibration yet.")
        view = View(
            model=model,
            runs=runs,
            corpus=corpus if corpus in runs else next(iter(runs), ""),
            sparsity_percent=_sparsity(model),
            exponents=exponents(),
            criterion=chosen_criterion(),
            gate=chosen_gate(),
        )
        _job_badge()
    return view


def _job_badge() -> None:
    active = [job for job in job_store().list() if not job.is_finished]
    if active:
        word = "job" if len(active) == 1 else "jobs"
        st.badge(f"{len(active)} {word} running", icon=":material/sync:", color="blue")


def copy_link() -> None:
    """The address of what is on screen; drawn last, for the page's own controls change it."""
    with st.sidebar, st.popover("Copy link", icon=":material/link:", width="stretch"):
        query = urlencode(st.query_params.to_dict())
        address = (st.context.url or "").partition("?")[0]
        st.text("This address opens the same view:")
        st.code(f"{address}?{query}" if query else address, language=None, wrap_lines=True)
