"""Whole experts or their neurons: the switch that pages share, and what ranks neurons."""

from collections.abc import Mapping
from typing import Any

import streamlit as st

from analysis.criteria import NEURON_CRITERIA
from analysis.criteria.heapr import DEFAULT_LAMBDA, camera_p
from app.charts.names import criterion_label
from app.session.plan_state import plan_input
from pruning.atoms.selection import AtomScope
from pruning.plan import ATOMIC_GRANULARITY, EXPERT_GRANULARITY
from pruning.planning.choice import SCOPES, scopes_of

GRANULARITIES: Mapping[str, str] = {EXPERT_GRANULARITY: "Experts", ATOMIC_GRANULARITY: "Neurons"}
MOST_LAMBDA = 100.0
# Declared to each widget as well, see `app.session.state.DEFAULTS`.
DEFAULTS: Mapping[str, Any] = {
    "granularity": EXPERT_GRANULARITY,
    "neurons": "heapr",
    # Experts stay equally wide, so that the export is smaller and every reader takes it.
    "scope": AtomScope.EXPERT,
}


def is_about_neurons() -> bool:
    """Whether neurons are chosen, and not whole experts."""
    return bool(st.session_state.get("granularity") == ATOMIC_GRANULARITY)


def granularity_control() -> None:
    """Draw the switch; above the sidebar's controls in the script, which ask what it says."""
    plan_input(
        st.segmented_control,
        "What is removed",
        list(GRANULARITIES),
        default=DEFAULTS["granularity"],
        key="granularity",
        required=True,
        format_func=GRANULARITIES.__getitem__,
        help="**Experts**: whole ones, so that the router has fewer to choose from.  \n"
        "**Neurons**: inside experts, which become narrower; a neuron is a row of the gate and up "
        "matrices and a column of down (the papers say atomic expert).",
    )


def chosen_neuron_criterion() -> str:
    """Name of what ranks neurons; the first where the control says none that there is."""
    name = st.session_state.get("neurons", DEFAULTS["neurons"])
    if name == "camera-p":
        given = st.session_state.get("lambda", DEFAULT_LAMBDA)
        is_number = isinstance(given, int | float) and 0 <= given <= MOST_LAMBDA
        return camera_p(float(given) if is_number else DEFAULT_LAMBDA).name
    return name if name in NEURON_CRITERIA else str(DEFAULTS["neurons"])


def chosen_scope(criterion: str) -> AtomScope:
    """Among which neurons the budget is spent: what the control says, where the criterion can."""
    said = st.session_state.get("scope", DEFAULTS["scope"])
    possible = scopes_of(criterion)
    return said if said in possible else possible[0]


def neuron_criterion_controls() -> None:
    """Draw what ranks neurons, and among which of them the budget is spent."""
    plan_input(
        st.segmented_control,
        "Criterion",
        tuple(NEURON_CRITERIA),
        default=DEFAULTS["neurons"],
        key="neurons",
        required=True,
        format_func=criterion_label,
        help="**HEAPr**: how much the loss is expected to grow without the neuron; one forward and "
        "one backward pass.  \n**CAMERA-P**: how much the neuron writes.  \n**Neuron norms**: the "
        "weights alone, no calibration; a default, not a method of the papers.  \n**Random**: what "
        "any of them must beat.",
    )
    if st.session_state.get("neurons") == "camera-p":
        plan_input(
            st.number_input,
            "Lambda",
            0.0,
            MOST_LAMBDA,
            value=DEFAULT_LAMBDA,
            step=0.5,
            key="lambda",
            width=140,
            help="How much a neuron's largest activation counts beside the norm of all; the paper "
            "gives no value, 1 is ours.",
        )
    criterion = chosen_neuron_criterion()
    possible = scopes_of(criterion)
    if st.session_state.get("scope", DEFAULTS["scope"]) not in possible:
        st.session_state["scope"] = possible[0]
    plan_input(
        st.segmented_control,
        "Neurons compete within",
        possible,
        default=DEFAULTS["scope"],
        key="scope",
        required=True,
        format_func=lambda scope: SCOPES[scope],
        help="**Global** (HEAPr-G): the weakest neurons of the model go, wherever they are.  "
        "\n**Per layer** (HEAPr-L): every layer loses the same fraction.  \n**Per expert**: every "
        "expert loses the same fraction, so all stay equally wide.",
    )
    if AtomScope.GLOBAL not in possible:
        st.caption(
            f":material/info: {criterion_label(criterion)} compares neurons of one layer only, so "
            "a global budget is not offered."
        )
