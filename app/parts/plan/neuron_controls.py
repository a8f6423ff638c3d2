"""The controls of a plan of neurons: what ranks, the budget, widths of the export, constraints."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import streamlit as st

from app.charts.context import Context
from app.frame.controls import one_of
from app.parts.plan.files import upload_part
from app.session.granularity import (
    chosen_neuron_criterion,
    chosen_scope,
    neuron_criterion_controls,
    scope_note,
)
from app.session.plan_state import forget_import
from pruning.atoms.widths import DEFAULT_MULTIPLE
from pruning.planning.neuron_plan import UNITS, WIDTH_MODES, WIDTH_MULTIPLES, NeuronPlanChoice
from pruning.planning.planning import MOST_TEXT, MULTIPLES

Value = TypeVar("Value")
# Declared to each widget as well, see `app.session.state.DEFAULTS`.
DEFAULTS: Mapping[str, Any] = {
    "unit": "neurons",
    "width": "uniform",
    "width_multiple": DEFAULT_MULTIPLE,
    "neuron_multiple": 1,
    "protect": "",
    "pin": "",
    "drop": "",
}


def neuron_plan_controls(context: Context) -> NeuronPlanChoice:
    """Draw the controls; what they say. For the entry script, see there."""
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        neuron_criterion_controls()
        st.segmented_control(
            "Sparsity is a share of",
            list(UNITS),
            default=DEFAULTS["unit"],
            key="unit",
            bind="query-params",
            required=True,
            format_func=lambda unit: UNITS[unit],
            on_change=forget_import,
            help="**Neurons** of the routed experts (HEAPr, Algorithm 1), or **all parameters** of "
            "the model, embeddings and attention as well (its Figure 2); zeros that a width mode "
            "adds are not counted.",
        )
    if note := scope_note():
        st.caption(f":material/info: {note}")
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        _width_inputs()
        _multiple_input()
        _expert_inputs()
        with st.popover("From a file", icon=":material/upload_file:"):
            upload_part(context)
    return chosen_neuron_plan()


def chosen_neuron_plan() -> NeuronPlanChoice:
    """What the controls say; the first value of each where it is none that they offer."""
    criterion = chosen_neuron_criterion()
    return NeuronPlanChoice(
        criterion=criterion,
        scope=chosen_scope(criterion),
        unit=_said("unit", list(UNITS)),
        width_mode=_said("width", WIDTH_MODES),
        width_multiple=_said("width_multiple", WIDTH_MULTIPLES),
        multiple_of=_said("neuron_multiple", MULTIPLES),
        protect=str(st.session_state.get("protect") or ""),
        pin=str(st.session_state.get("pin") or ""),
        drop=str(st.session_state.get("drop") or ""),
    )


def _said(key: str, options: Sequence[Value]) -> Value:
    first: Value = DEFAULTS[key]
    return one_of(st.session_state.get(key), options, first)


def _width_inputs() -> None:
    st.segmented_control(
        "Widths of the export",
        WIDTH_MODES,
        default=DEFAULTS["width"],
        key="width",
        bind="query-params",
        required=True,
        help="**uniform**: one width for the model, which every reader takes.  \n**per-layer**: "
        "one a layer.  \n**ragged**: each expert its own on disk, one a layer when loaded.  \n"
        "What is missing is filled up with zeros, so all three compute the same.",
    )
    st.selectbox(
        "Rounded up to",
        WIDTH_MULTIPLES,
        index=WIDTH_MULTIPLES.index(DEFAULTS["width_multiple"]),
        key="width_multiple",
        bind="query-params",
        help="Loaded widths are multiples of this, which grouped matrix products need: 16 bytes, 8 "
        "numbers in bfloat16.",
        width=115,
    )


def _multiple_input() -> None:
    st.selectbox(
        "Experts keep a multiple of",
        MULTIPLES,
        key="neuron_multiple",
        bind="query-params",
        on_change=forget_import,
        help="Neurons go in blocks, so that each expert keeps a multiple of this many.",
        width=185,
    )


def _expert_inputs() -> None:
    texts = (
        ("Protect layers", "protect", "such as 0,5-7", "Layers that lose nothing."),
        ("Keep experts whole", "pin", "such as 3:5,7-9", "LAYER:EXPERTS that lose no neuron."),
        (
            "Drop experts",
            "drop",
            "such as 4:0,2",
            "LAYER:EXPERTS that go as a whole, with their rows of the router.",
        ),
    )
    for label, key, example, note in texts:
        st.text_input(
            label,
            key=key,
            bind="query-params",
            max_chars=MOST_TEXT,
            placeholder=example,
            on_change=forget_import,
            help=f"{note} The others lose more, so that the budget stays.",
            width=150,
        )
