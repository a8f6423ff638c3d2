"""The sidebar: model, calibration corpus, sparsity, running jobs, link to this view."""

from collections.abc import Mapping
from urllib.parse import urlencode

import streamlit as st

from analysis.errors import UserError
from analysis.model import MoEModel
from analysis.stats.store import Run
from app.choices import BLEND
from app.jobs.model import ACTIVE
from app.literal import literal
from app.session.data import chosen_model, model_choices, routed_runs
from app.session.granularity import granularity_control, is_about_neurons
from app.session.job_queue import job_store
from app.session.opening import open_on_best
from app.session.plan_state import BUDGETS, plan_input
from app.session.plan_state import DEFAULTS as PLAN_DEFAULTS
from app.session.state import DEFAULTS, EQUAL_SHARE, chosen_shares, corpora_of, share_key
from app.tables.costs import experts_text
from app.widgets.controls import one_of
from app.widgets.notes import show_command
from pruning.planning.choice import SPARSITY_STEP, possible_percents, shrink_sparsities
from pruning.sizes import format_bytes


def budget_controls(model: MoEModel) -> int:
    """Draw the unit of the budget and the slider; return the percentage."""
    if is_about_neurons():  # all neurons can be pruned, but a router needs experts
        return _slider(list(range(0, 100, SPARSITY_STEP)))
    shrunk = shrink_sparsities(model)
    plan_input(
        st.segmented_control,
        "Remove a share of",
        list(BUDGETS),
        default=PLAN_DEFAULTS["budget"],
        key="budget",
        required=True,
        format_func=lambda budget: BUDGETS[budget],
        disabled=not shrunk,
        help="**Experts** of each layer, or **bytes** of the checkpoint: the largest equal number "
        "of experts that saves this much.",
    )
    is_shrunk = shrunk and st.session_state.get("budget") == "bytes"
    return _slider(list(shrunk) if is_shrunk else possible_percents(model))


def _slider(options: list[int]) -> int:
    """A slider of percentages."""
    usual = max(percent for percent in options if percent <= int(DEFAULTS["sparsity"]))
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
            help="How much is pruned.",
        )
    )


def corpus_options(runs: Mapping[str, Run]) -> list[str]:
    """Corpora that can rank: each one, and the blend if there are several."""
    return [*runs, BLEND] if len(runs) > 1 else list(runs)


def _corpus(runs: Mapping[str, Run]) -> str:
    if not runs:
        st.text("No calibration yet.")
        return ""
    options = corpus_options(runs)
    chosen = st.pills(
        "Calibration corpus",
        options,
        key="corpus",
        bind="query-params",
        required=True,
        default=options[0],
        format_func=literal,
        help="Its statistics rank the experts; (blend) mixes all.",
    )
    return one_of(chosen, options)


def blend_sliders(runs: Mapping[str, Run]) -> None:
    """The share of each corpus in the blend."""
    for corpus in runs:
        st.slider(
            f"Share of {literal(corpus)}",
            0,
            100,
            EQUAL_SHARE,
            key=share_key(corpus),
            bind="query-params",
            help="Its weight in the blend, relative to the other corpora.",
        )


def model_and_calibration(page: str) -> tuple[MoEModel, tuple[str, ...], int]:
    """Draw the sidebar; return model, corpora (as for --corpus) and percentage."""
    with st.sidebar:
        st.markdown("**MoE Prune Studio**")
        choices = {choice.name: choice for choice in model_choices()}
        if not choices:
            raise UserError(
                "There is no model to show. Build the demo with `python -m tools.demo.build`, or "
                "start with `moeprune app --models-root FOLDER`."
            )
        name = st.selectbox("Model", list(choices), key="model", bind="query-params")
        model = chosen_model(choices[name])
        st.text(
            f"{len(model.layers)} layers x {experts_text(model.layers)} experts, "
            f"top-{model.layers[0].top_k}, "
            f"{format_bytes(model.checkpoint.nbytes)} {model.dtype.lower()}"
        )
        open_on_best(model, page)
        granularity_control()  # before the sparsity, which depends on it
        runs = routed_runs(model)
        corpus = _corpus(runs)
        if corpus == BLEND:
            blend_sliders(runs)
        percent = budget_controls(model)
        counts = job_store().counts()
        if active := [f"{counts[state]:,} {state}" for state in ACTIVE if state in counts]:
            number, _, state = active[0].partition(" ")
            active[0] = f"{number} {'job' if number == '1' else 'jobs'} {state}"
            st.badge(", ".join(active), icon=":material/sync:", color="blue")
    return model, corpora_of(corpus, chosen_shares(runs)), percent


def copy_link() -> None:
    """The URL of this view; drawn last, because the page's controls change it."""
    with st.sidebar, st.popover("Copy link", icon=":material/link:", width="stretch"):
        query = urlencode(st.query_params.to_dict())
        address = (st.context.url or "").partition("?")[0]
        st.text("This URL opens the same view:")
        show_command(f"{address}?{query}" if query else address)
