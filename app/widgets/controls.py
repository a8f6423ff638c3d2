"""The criterion controls: family, exponent toggles, presets, gate, baseline; those of neurons."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from analysis.criteria import CRITERIA, get_criterion
from analysis.stats.columns import GATES
from app.charts.names import criterion_label
from app.components.expert_map import Arrangement, Mode
from app.session.plan_state import lasting_input, plan_input
from app.session.state import (
    BASELINES,
    MOST_LAMBDA,
    OPTIONS,
    OTHER,
    UNIFIED,
    USUAL,
    USUAL_BASELINE,
    apply_criterion,
    criterion_in,
    one_of,
)
from app.widgets.url_values import say_unknown
from pruning.plan.units import NeuronScope
from pruning.planning.choice import SCOPES, schedule_label, scopes_of
from pruning.schedules import MEASURED

Choice = TypeVar("Choice", bound=str)
Value = TypeVar("Value")
ORDERS: Mapping[Arrangement, str] = {"rank": "By rank", "expert": "By expert"}
MODES: Mapping[Mode, str] = {
    "values": "Saliency",
    "beside": "Side by side",
    "mask": "Kept",
    "delta": "Rank change",
}
_TOGGLES = (
    ("b", "$b$ sum, mean", (0, 1)),
    ("alpha", r"$\alpha$ gate weight", (0, 1, 2)),
    ("beta", r"$\beta$ output norm", (0, 1, 2)),
)


def choose(
    label: str, options: Sequence[Value], usual: Value | None = None, **widget: Any
) -> Value:
    """Draw a list of options; default `usual` or the first."""
    first = one_of(usual, options)
    if widget.get("bind"):
        say_unknown(label, widget["key"], options, widget.get("format_func", str))
    chosen = st.selectbox(label, options, index=options.index(first), **widget)
    return one_of(chosen, options, first)


def part_switch(label: str, key: str, options: Mapping[Choice, str]) -> Choice | None:
    """A choice between parts of a page, in the URL; None while none is open."""
    chosen = _switch(label, key, options)
    return chosen if chosen in options else None


def view_switch(label: str, key: str, options: Mapping[Choice, str]) -> Choice:
    """A choice between views, in the URL; `options` maps values to their words."""
    values = list(options)
    return one_of(_switch(label, key, options, required=True, default=values[0]), values)


def _switch(label: str, key: str, options: Mapping[Choice, str], **look: Any) -> Any:
    say_unknown(label, key, list(options.values()))  # a URL has the words
    return st.segmented_control(
        label,
        list(options),
        key=key,
        bind="query-params",
        format_func=lambda value: options[value],
        label_visibility="collapsed",
        **look,
    )


def control_row(**look: Any) -> DeltaGenerator:
    """Controls side by side, wrapped in narrow windows; `look` are arguments of `st.container`."""
    return st.container(horizontal=True, vertical_alignment="bottom", **look)


def criterion_controls() -> None:
    """Draw the criterion, and its exponents if it has some; `criterion_in` reads them."""
    state = st.session_state
    is_unified = state["criterion"] not in OTHER
    if is_unified:
        criterion = criterion_in(st.session_state)
        state["criterion"] = criterion.name if criterion else UNIFIED
    options = [*BASELINES, *([UNIFIED] if state["criterion"] == UNIFIED else [])]
    lasting_input(
        st.selectbox,
        "Criterion",
        options,
        key="criterion",
        format_func=criterion_words,
        on_change=lambda: apply_criterion(str(state["criterion"])),
        width=175,
    )
    if not is_unified:
        return
    for key, label, exponents in _TOGGLES:
        lasting_input(st.segmented_control, label, exponents, key=key, required=True)


def neuron_criterion_controls() -> None:
    """Draw the neuron criterion and its scope."""
    plan_input(
        st.segmented_control,
        "Criterion",
        OPTIONS["neurons"],
        key="neurons",
        required=True,
        format_func=criterion_label,
        help="**HEAPr**: expected loss increase without the neuron; one forward and "
        "one backward pass.  \n**CAMERA-P**: output magnitude of the neuron.  \n**Neuron norms**: "
        "weights only, no calibration; a baseline, not from a paper.  \n**Random**: the floor that "
        "others must beat.",
    )
    criterion = one_of(st.session_state["neurons"], OPTIONS["neurons"], USUAL["neurons"])
    if criterion == "camera-p":
        plan_input(
            st.number_input,
            "Lambda",
            0.0,
            MOST_LAMBDA,
            step=0.5,
            key="lambda",
            width=140,
            help="Weight of a neuron's largest activation relative to the norm of all. The paper "
            "gives no value; our default is 1.",
        )
    possible = (*scopes_of(criterion), MEASURED)
    if st.session_state["neuron_scope"] not in possible:
        st.session_state["neuron_scope"] = USUAL["neuron_scope"]
    plan_input(
        st.segmented_control,
        "Neurons compete within",
        possible,
        key="neuron_scope",
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


def formula_part() -> None:
    """Show the formula of the toggles."""
    if (criterion := criterion_in(st.session_state)) is not None:
        st.markdown(f"${criterion.formula}$", width="content")


def gate_control() -> None:
    """Draw the gate convention, if the criterion has one."""
    criterion = criterion_in(st.session_state)
    if criterion is None or not criterion.uses_gate:
        return
    lasting_input(
        st.segmented_control,
        "Gate weights",
        GATES,
        key="gate",
        required=True,
        format_func=str.capitalize,
        help="Applied: as the model multiplies. Renormalized: divided by the sum of the selected.",
    )


def baseline_control() -> None:
    """Draw the choice of baseline, on Explore and Compare."""
    say_unknown("Compare with", "baseline", BASELINES, criterion_words)
    st.selectbox(
        "Compare with",
        BASELINES,
        index=BASELINES.index(USUAL_BASELINE),
        key="baseline",
        bind="query-params",
        format_func=criterion_words,
        width=175,
    )


def criterion_words(name: str) -> str:
    """A criterion in a list: its label, and its exponents if it has some."""
    if name == UNIFIED:
        return "Constant  (1, 0, 0)"
    criterion = get_criterion(name)
    is_named = name in CRITERIA and criterion.exponents  # S(1,1,2) has its exponents in the name
    return criterion.label + (f"  {criterion.exponents}" if is_named else "")
