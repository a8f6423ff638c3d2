"""The chosen plan and its controls, drawn on every page."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any, Final

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from analysis.errors import UserError
from analysis.stats.columns import GATES
from app.choices import BLEND
from app.literal import literal
from app.loaded import Loaded
from app.session.data import loaded_for, what_is_missing
from app.session.link import write_link
from app.session.plan_data import current_plan
from app.session.state import (
    TEXTS,
    USUAL,
    apply_criterion,
    asked_spec,
    controls_on_page,
    corpora_of,
    corpus_options,
    is_about_neurons,
    page_choices,
)
from app.widgets.controls import (
    baseline_control,
    choose,
    control_row,
    criterion_controls,
    formula_part,
    gate_control,
    neuron_criterion_controls,
)
from app.widgets.notes import inform
from app.widgets.plan_bar import lost_note, no_plan, plan_line
from app.widgets.plan_controls import plan_controls, search_input
from app.widgets.sidebar import blend_sliders, model_and_calibration
from pruning.planning.choice import possible_percents
from pruning.requests.ranking import SecondRequest

_GROUPS: Final = ("criterion", "baseline", "second", "schedule", "limits")
# Page -> groups of controls on the page; the others are in the sidebar.
_ON_PAGE: Final = {
    "explore": ("criterion", "baseline"),
    "compare": ("baseline", "second"),
    "plan": ("schedule",),
}
# Fields of B that may differ besides the criterion -> control.
_SIDE_B: Final = {"corpus": "b_text", "gate": "b_gate", "sparsity": "b_sparsity"}


def chosen_plan(page: str) -> tuple[Loaded, str]:
    """Draw the plan and its controls; return their values, or why there is no plan.

    The entry script draws all of them, not the pages: Streamlit forgets the value of a control that
    a run does not draw.

    Raises:
        UserError: no model, or one that cannot be used.
    """
    bar = st.container(key="plan-bar")
    model, corpora = model_and_calibration(bar)
    neurons = is_about_neurons()
    places = _places(page, neurons=neurons)
    with places["criterion"]:
        if neurons:
            neuron_criterion_controls()
        else:
            criterion_controls()
            formula_part()
    if not neurons:
        with places["baseline"]:
            baseline_control()
        with places["limits"]:
            gate_control()
    plan_controls(model, corpora, places["schedule"], places["limits"])
    with bar:
        lost_note(model)
    try:
        asked = asked_spec(controls_on_page(), model, corpora)
        loaded = loaded_for(model, page_choices(asked))
        with places["schedule"]:
            loaded = loaded.choosing(search=search_input(loaded))
        write_link(asked, model, corpora)
    except UserError as error:
        plain = controls_on_page() | {key: USUAL[key] for key in TEXTS}
        with bar:
            no_plan(error)
        return loaded_for(model, page_choices(asked_spec(plain, model, corpora))), str(error)
    if not neurons and page == "compare" and loaded.choices.criterion is not None:
        with places["second"]:
            loaded = loaded.choosing(second=_recipe_controls(loaded))
    with st.sidebar:
        for note in loaded.run_notes:
            st.caption(literal(note))
    with bar:
        try:
            loaded = replace(loaded, shown=current_plan(loaded))
        except UserError as error:
            no_plan(error)
            return loaded, str(error)
        loaded = plan_line(loaded)
    return loaded, ""


def _places(page: str, *, neurons: bool) -> dict[str, DeltaGenerator]:
    """A container per group of controls: those of the page in a row, the others in the sidebar."""
    on_page: Collection[str] = _ON_PAGE.get(page, ())
    if neurons and page == "plan":
        on_page = ("criterion", "schedule")
    row = control_row(key="plan-controls") if on_page else st.sidebar
    places = {}
    for name in _GROUPS:
        is_on_page = name in on_page
        with row if is_on_page else st.sidebar:
            width = "content" if is_on_page else "stretch"
            places[name] = control_row(key=f"group-{name}", width=width)
    return places


def swap(loaded: Loaded) -> None:
    """Swap A and B."""
    state, a = st.session_state, loaded.both.a
    side_a = {name: state.get(name) for name in ("corpus", "gate", "sparsity")}
    apply_criterion(str(state.get("baseline")))
    state["baseline"] = a.plan.ranking.criterion
    for name, key in _SIDE_B.items():
        if state.get(key, "") != "":
            state[name], state[key] = state[key], side_a[name]


def _recipe_controls(loaded: Loaded) -> SecondRequest:
    """Draw the controls of B. A is the plan."""
    options: dict[str, Sequence[Any]] = {
        "corpus": corpus_options(loaded.runs),
        "gate": GATES,
        "sparsity": possible_percents(loaded.model),
    }
    with st.popover("Change B", icon=":material/tune:"):
        side_b = {
            name: choose(
                f"{name.capitalize()} of B",
                ("", *options[name]),
                key=key,
                bind="query-params",
                format_func=lambda value: str(value) or "as A",
            )
            for name, key in _SIDE_B.items()
        }
    st.button(
        "Swap A and B", key="swap", icon=":material/swap_horiz:", on_click=swap, args=(loaded,)
    )
    values: dict[str, Any] = {}
    if side_b["corpus"] and loaded.choices.baseline.source == "routed":
        corpora = corpora_of(side_b["corpus"], controls_on_page(), list(loaded.runs))
        values["with_corpora"] = corpora
    if side_b["corpus"] == BLEND != loaded.corpus:
        with st.popover("Shares of the blend", icon=":material/tune:"):
            blend_sliders(loaded.runs)
    if side_b["gate"]:
        values["with_gate"] = side_b["gate"]
    if side_b["sparsity"]:
        values["with_sparsity"] = f"{side_b['sparsity']}%"
    return loaded.second_by(**values)


def has_statistics(loaded: Loaded) -> bool:
    """Whether both recipes can rank; shows what is missing unless the plan bar does."""
    for criterion in (loaded.choices.ranking_criterion, loaded.choices.baseline):
        if (missing := what_is_missing(loaded, criterion)) is not None:
            if loaded.shown is not None or criterion is loaded.choices.baseline:
                inform(missing)
            return False
    return True
