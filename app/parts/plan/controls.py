"""The controls of a plan: schedule, what it must respect, and files to take one from."""

import streamlit as st

from app.charts.context import Context
from app.parts.plan.files import upload_part
from app.session.plan_state import (
    DEFAULTS,
    chosen_plan,
    counts_typed,
    forget_import,
    schedule_chosen,
)
from app.session.search_data import ordered_for, searches_of
from pruning.planning.planning import (
    MOST_TEXT,
    MULTIPLES,
    SCHEDULE_NAMES,
    PlanChoice,
    schedule_label,
)
from pruning.schedules import SCHEDULES
from pruning.search.store import SEARCH

_SUMMARIES = "  \n".join(
    f"**{schedule_label(name)}**: {SCHEDULES[name].summary}."
    for name in SCHEDULE_NAMES
    if name in SCHEDULES
)


def plan_controls(context: Context) -> PlanChoice:
    """Draw the controls; what they say. For the entry script, see there."""
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        st.segmented_control(
            "Schedule",
            SCHEDULE_NAMES,
            default=DEFAULTS["schedule"],
            key="schedule",
            bind="query-params",
            required=True,
            on_change=schedule_chosen,
            format_func=schedule_label,
            wrap=True,
            help=f"How the budget is spread over the layers.  \n{_SUMMARIES}  \n**Searched**: "
            "what a search on the model itself found.  \n**By hand**: as dragged on the Plan page, "
            "from whichever schedule was there.",
        )
        if st.session_state.get("schedule") == SEARCH:
            _search_input(context)
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        st.text_input(
            "Protect layers",
            key="protect",
            bind="query-params",
            max_chars=MOST_TEXT,
            placeholder="such as 0,5-7",
            on_change=forget_import,
            help="Layers that lose nothing; the others lose more, so that the budget stays.",
            width=150,
        )
        _multiple_input(context)
        _hand_inputs()
        with st.popover("From a file", icon=":material/upload_file:"):
            upload_part(context)
    return chosen_plan()


def _search_input(context: Context) -> None:
    """Which search: those that fit budget and criterion on screen first."""
    # Names alone: what the list shows is what the address says.
    known = [each.search_id for each in ordered_for(context, searches_of(context.model).known)]
    if not known:
        return
    if st.session_state.get("searched") not in known:
        st.session_state["searched"] = known[0]
    st.selectbox(
        "Search",
        known,
        key="searched",
        bind="query-params",
        on_change=forget_import,
        help="The order of the experts within layers comes with it.",
        width=340,
    )


def _multiple_input(context: Context) -> None:
    most = max(layer.num_experts for layer in context.model.layers)
    options = [number for number in MULTIPLES if number <= most]
    if st.session_state.get("multiple", 1) not in options:
        st.session_state["multiple"] = 1
    st.selectbox(
        "Multiple of",
        options,
        key="multiple",
        bind="query-params",
        on_change=forget_import,
        help="Layers keep a multiple of this many experts, which parallel kernels may need.",
        width=105,
    )


def _hand_inputs() -> None:
    # Drawn for every schedule: what a callback sets of a widget that was not there reaches the
    # page, but not the address.
    st.text_input(
        "Counts by hand",
        key="counts",
        bind="query-params",
        max_chars=MOST_TEXT,
        placeholder="such as 16.16.12",
        on_change=counts_typed,
        help="Experts kept, as in the address: a number for each sparse layer, with dots between.",
        width=230,
    )
    st.text_input(
        "Locked layers",
        key="locked",
        bind="query-params",
        max_chars=MOST_TEXT,
        placeholder="none",
        help="Layers that neither give nor take when another one is moved.",
        width=120,
    )
