"""Granularity: experts or neurons, and the criterion of neurons."""

from collections.abc import Mapping
from typing import Any

import streamlit as st

from analysis.criteria import NEURON_CRITERIA
from analysis.criteria.heapr import DEFAULT_LAMBDA, camera_p
from app.charts.names import criterion_label
from app.session.plan_state import plan_input
from pruning.neurons.selection import NeuronScope
from pruning.plan import EXPERT_GRANULARITY, NEURON_GRANULARITY
from pruning.planning.choice import SCOPES, schedule_label, scopes_of
from pruning.schedules import MEASURED

GRANULARITIES: Mapping[str, str] = {EXPERT_GRANULARITY: "Experts", NEURON_GRANULARITY: "Neurons"}
MOST_LAMBDA = 100.0
# Also declared to each widget; see `app.session.state.DEFAULTS`.
DEFAULTS: Mapping[str, Any] = {
    "granularity": EXPERT_GRANULARITY,
    "neurons": "heapr",
    # Equal widths: the export is smaller and loads everywhere.
    "scope": NeuronScope.EXPERT,
}


def is_about_neurons() -> bool:
    """Whether the granularity is neurons."""
    return bool(st.session_state.get("granularity") == NEURON_GRANULARITY)


def granularity_control() -> None:
    """Draw the switch, before the sidebar's controls that depend on it."""
    plan_input(
        st.segmented_control,
        "Granularity",
        list(GRANULARITIES),
        default=DEFAULTS["granularity"],
        key="granularity",
        required=True,
        format_func=GRANULARITIES.__getitem__,
        help="**Experts**: remove whole experts.  \n"
        "**Neurons**: make experts narrower; a neuron is a row of gate and up and a column of "
        "down.",
    )


def chosen_neuron_criterion() -> str:
    """Name of the neuron criterion; the first if the control has no valid one."""
    name = st.session_state.get("neurons", DEFAULTS["neurons"])
    if name == "camera-p":
        value = st.session_state.get("lambda", DEFAULT_LAMBDA)
        is_number = isinstance(value, int | float) and 0 <= value <= MOST_LAMBDA
        return camera_p(float(value) if is_number else DEFAULT_LAMBDA).name
    return name if name in NEURON_CRITERIA else str(DEFAULTS["neurons"])


def is_spread_as_measured() -> bool:
    """Whether layers lose what their sensitivity says, and neurons compete within each."""
    return bool(st.session_state.get("scope") == MEASURED)


def chosen_scope(criterion: str) -> NeuronScope:
    """Scope in which neurons compete: the control's, if the criterion supports it."""
    if is_spread_as_measured():
        return NeuronScope.LAYER
    scope, possible = st.session_state.get("scope", DEFAULTS["scope"]), scopes_of(criterion)
    return scope if scope in possible else possible[0]


def neuron_criterion_controls() -> None:
    """Draw the neuron criterion and its scope."""
    plan_input(
        st.segmented_control,
        "Criterion",
        tuple(NEURON_CRITERIA),
        default=DEFAULTS["neurons"],
        key="neurons",
        required=True,
        format_func=criterion_label,
        help="**HEAPr**: expected loss increase without the neuron; one forward and "
        "one backward pass.  \n**CAMERA-P**: output magnitude of the neuron.  \n**Neuron norms**: "
        "weights only, no calibration; a baseline, not from a paper.  \n**Random**: the floor that "
        "others must beat.",
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
            help="Weight of a neuron's largest activation relative to the norm of all. The paper "
            "gives no value; our default is 1.",
        )
    criterion = chosen_neuron_criterion()
    possible = scopes_of(criterion)
    if st.session_state.get("scope", DEFAULTS["scope"]) not in (*possible, MEASURED):
        st.session_state["scope"] = possible[0]
    plan_input(
        st.segmented_control,
        "Neurons compete within",
        (*possible, MEASURED),
        default=DEFAULTS["scope"],
        key="scope",
        required=True,
        format_func=lambda scope: SCOPES.get(scope) or schedule_label(scope),
        help="**Global** (HEAPr-G): prune the least salient neurons of the whole model.  "
        "\n**Per layer** (HEAPr-L): prune the same fraction of every layer.  \n**Per expert**: "
        "prune the same fraction of every expert, so widths stay equal.  \n**Measured**: "
        "per layer, and layers lose what their measured sensitivity says.",
    )
    if NeuronScope.GLOBAL not in possible:
        st.caption(
            f":material/info: {criterion_label(criterion)} compares neurons of one layer only, so "
            "a global budget is not offered."
        )
