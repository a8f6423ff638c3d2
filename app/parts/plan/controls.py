"""The controls of a plan, of experts or of neurons, and files to take one from."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from app.charts.context import Context
from app.frame.controls import one_of
from app.parts.plan.files import upload_part
from app.session.granularity import (
    chosen_neuron_criterion,
    chosen_scope,
    is_about_neurons,
)
from app.session.plan_state import (
    DEFAULTS,
    chosen_plan,
    counts_typed,
    plan_input,
    schedule_chosen,
)
from app.session.search_data import ordered_for, searches_of
from pruning.atoms.widths import DEFAULT_MULTIPLE
from pruning.plan import ATOMIC_GRANULARITY
from pruning.planning.choice import (
    MOST_TEXT,
    MULTIPLES,
    SCHEDULE_NAMES,
    UNITS,
    WIDTH_MODES,
    WIDTH_MULTIPLES,
    PlanChoice,
    schedule_label,
)
from pruning.schedules import SCHEDULES
from pruning.search.store import SEARCH

Value = TypeVar("Value")
# Declared to each widget as well, see `app.session.state.DEFAULTS`.
_OF_NEURONS: Final[Mapping[str, Any]] = {
    "unit": "neurons",
    "width": "uniform",
    "width_multiple": DEFAULT_MULTIPLE,
    "neuron_multiple": 1,
}
_OTHERS_LOSE: Final = " The others lose more, so that the budget stays."
_SUMMARIES: Final = "  \n".join(
    f"**{schedule_label(name)}**: {SCHEDULES[name].summary}."
    for name in SCHEDULE_NAMES
    if name in SCHEDULES
)


def plan_controls(context: Context, front: DeltaGenerator, rare: DeltaGenerator) -> PlanChoice:
    """Draw the controls, the schedule in `front`, the others in `rare`; what they say."""
    with front:
        if is_about_neurons():
            _unit_input()
            _width_inputs()
        else:
            _schedule_inputs(context)
    with rare:
        if is_about_neurons():
            _neuron_limits()
        else:
            _expert_limits(context)
        upload_part(context)
    return _chosen_neurons() if is_about_neurons() else chosen_plan()


def _neuron_limits() -> None:
    _text("Protect layers", "protect", "such as 0,5-7", "Layers that lose nothing.")
    note = "LAYER:EXPERTS that lose no neuron."
    _text("Keep experts whole", "pin", "such as 3:5,7-9", note)
    note = "LAYER:EXPERTS that go as a whole, with their rows of the router."
    _text("Drop experts", "drop", "such as 4:0,2", note)


def _expert_limits(context: Context) -> None:
    note = "Layers that lose nothing; the others lose more, so that the budget stays."
    _text("Protect layers", "protect", "such as 0,5-7", note, rest="")
    _multiple_input(context)
    # Drawn for every schedule: what a callback sets of a widget that was not there reaches the
    # page, but not the address.
    note = "Experts kept, as in the address: a number for each sparse layer, with dots between."
    said: dict[str, Any] = {"rest": "", "width": 230, "on_change": counts_typed}
    _text("Counts by hand", "counts", "such as 16.16.12", note, **said)
    note = "Layers that neither give nor take when another one is moved."
    said = {"rest": "", "width": 120, "on_change": None}
    _text("Locked layers", "locked", "none", note, **said)


def _chosen_neurons() -> PlanChoice:
    """What the controls of neurons say; the first value of each where they do not offer it."""

    def said(key: str, options: Sequence[Value]) -> Value:
        usual: Value = _OF_NEURONS[key]
        return one_of(st.session_state.get(key), options, usual)

    return PlanChoice(
        granularity=ATOMIC_GRANULARITY,
        scope=chosen_scope(chosen_neuron_criterion()),
        unit=said("unit", list(UNITS)),
        width_mode=said("width", WIDTH_MODES),
        width_multiple=said("width_multiple", WIDTH_MULTIPLES),
        multiple_of=said("neuron_multiple", MULTIPLES),
        **{key: str(st.session_state.get(key) or "") for key in ("protect", "pin", "drop")},
    )


def _text(
    label: str, key: str, example: str, note: str, rest: str = _OTHERS_LOSE, **said: Any
) -> None:
    options = {"placeholder": example, "help": note + rest, "width": 150, **said}
    plan_input(st.text_input, label, key=key, max_chars=MOST_TEXT, **options)


def _schedule_inputs(context: Context) -> None:
    plan_input(
        st.segmented_control,
        "Schedule",
        SCHEDULE_NAMES,
        default=DEFAULTS["schedule"],
        key="schedule",
        required=True,
        on_change=schedule_chosen,
        format_func=schedule_label,
        wrap=True,
        help=f"How the budget is spread over the layers.  \n{_SUMMARIES}  \n**Searched**: "
        "what a search on the model itself found.  \n**By hand**: as dragged on the Plan page, "
        "from whichever schedule was there.",
    )
    if st.session_state.get("schedule") != SEARCH:
        return
    # Those that fit budget and criterion on screen first. Names alone: what the list shows is
    # what the address says.
    known = [each.search_id for each in ordered_for(context, searches_of(context.model).known)]
    if not known:
        return
    if st.session_state.get("searched") not in known:
        st.session_state["searched"] = known[0]
    plan_input(
        st.selectbox,
        "Search",
        known,
        key="searched",
        help="The order of the experts within layers comes with it.",
        width=340,
    )


def _multiple_input(context: Context) -> None:
    most = max(layer.num_experts for layer in context.model.layers)
    options = [number for number in MULTIPLES if number <= most]
    if st.session_state.get("multiple", 1) not in options:
        st.session_state["multiple"] = 1
    plan_input(
        st.selectbox,
        "Multiple of",
        options,
        key="multiple",
        help="Layers keep a multiple of this many experts, which parallel kernels may need.",
        width=105,
    )


def _unit_input() -> None:
    plan_input(
        st.segmented_control,
        "Sparsity is a share of",
        list(UNITS),
        default=_OF_NEURONS["unit"],
        key="unit",
        required=True,
        format_func=lambda unit: UNITS[unit],
        help="**Neurons** of the routed experts (HEAPr, Algorithm 1), **all parameters** of the "
        "model, embeddings and attention as well (its Figure 2; zeros that a width mode adds are "
        "not counted), or **bytes** of the export in its width mode.",
    )


def _width_inputs() -> None:
    plan_input(
        st.segmented_control,
        "Widths of the export",
        WIDTH_MODES,
        default=_OF_NEURONS["width"],
        key="width",
        required=True,
        help="**uniform**: one width for the model, which every reader takes.  \n**per-layer**: "
        "one a layer.  \n**ragged**: each expert its own on disk, one a layer when loaded.  \n"
        "What is missing is filled up with zeros, so all three compute the same.",
        on_change=None,
    )
    plan_input(
        st.selectbox,
        "Rounded up to",
        WIDTH_MULTIPLES,
        index=WIDTH_MULTIPLES.index(_OF_NEURONS["width_multiple"]),
        key="width_multiple",
        help="Loaded widths are multiples of this, which grouped matrix products need: 16 bytes, 8 "
        "numbers in bfloat16.",
        width=115,
        on_change=None,
    )
    plan_input(
        st.selectbox,
        "Experts keep a multiple of",
        MULTIPLES,
        key="neuron_multiple",
        help="Neurons go in blocks, so that each expert keeps a multiple of this many.",
        width=185,
    )
