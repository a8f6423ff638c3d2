"""The criterion controls: family, exponent toggles, presets, gate convention, baseline."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from analysis.criteria import CRITERIA, get_criterion
from analysis.stats.tables import GATES
from app.components.expert_map import Arrangement, Mode
from app.session.state import (
    BASELINES,
    CRITERION_OPTIONS,
    DEFAULTS,
    PAIR,
    PRESETS,
    UNIFIED,
    apply_preset,
    chosen_criterion,
)

Choice = TypeVar("Choice", bound=str)
Value = TypeVar("Value")
UNIFIED_LABEL = "Unified S(b, α, β)"  # noqa: RUF001  (Greek on purpose)
ORDERS: Mapping[Arrangement, str] = {"rank": "By rank", "expert": "By expert"}
MODES: Mapping[Mode, str] = {"values": "Saliency", "mask": "Kept", "delta": "Rank change"}
_TOGGLES = (
    ("b", "$b$", (0, 1), "0 sums over the routed tokens, 1 averages over them."),
    ("alpha", r"$\alpha$", (0, 1, 2), "Exponent of the router's gate weight."),
    ("beta", r"$\beta$", (0, 1, 2), "Exponent of the norm of the expert's output."),
)


def one_of(value: object, options: Sequence[Value], usual: Value | None = None) -> Value:
    """Validate a widget value; an unknown one becomes `usual` or the first option."""
    first = options[0] if usual is None else usual
    return next((option for option in options if option == value), first)


def choose(
    label: str, options: Sequence[Value], usual: Value | None = None, **widget: Any
) -> Value:
    """Draw a list of options; default `usual` or the first."""
    first = one_of(usual, options)
    chosen = st.selectbox(label, options, index=options.index(first), **widget)
    return one_of(chosen, options, first)


def view_switch(label: str, key: str, options: Mapping[Choice, str]) -> Choice:
    """A choice between views, in the URL; `options` maps values to their words."""
    values = list(options)
    chosen = st.segmented_control(
        label,
        values,
        key=key,
        bind="query-params",
        required=True,
        default=values[0],
        format_func=lambda value: options[value],
        label_visibility="collapsed",
    )
    return one_of(chosen, values)


def control_row() -> DeltaGenerator:
    """Controls side by side, wrapped in narrow windows."""
    return st.container(horizontal=True, vertical_alignment="bottom")


def criterion_controls() -> None:
    """Draw the criterion controls; `chosen_criterion` reads them."""
    is_unified = st.session_state.get("criterion", UNIFIED) == UNIFIED
    _criterion_list(
        "Criterion",
        "criterion",
        CRITERION_OPTIONS,
        lambda name: UNIFIED_LABEL if name == UNIFIED else CRITERIA[name].label,
    )
    for key, label, options, note in _TOGGLES:
        st.segmented_control(
            label,
            options,
            default=DEFAULTS[key],
            key=key,
            bind="query-params",
            required=True,
            disabled=not is_unified,
            help=note,
        )
    st.menu_button(
        "Presets",
        (*PRESETS, PAIR),
        key="preset",
        on_click=lambda: apply_preset(st.session_state.get("preset")),
        format_func=_preset_label,
        icon=":material/bookmarks:",
    )


def formula_part() -> None:
    """Show the formula of the toggles."""
    if (criterion := chosen_criterion()) is not None:
        st.markdown(f"${criterion.formula}$", width="content")


def gate_control() -> None:
    """Draw the gate convention."""
    criterion = chosen_criterion()
    st.segmented_control(
        "Gate weights",
        GATES,
        default=DEFAULTS["gate"],
        key="gate",
        bind="query-params",
        required=True,
        format_func=str.capitalize,
        disabled=criterion is None or not criterion.uses_gate,
        help="Applied: as the model multiplies. Renormalized: divided by the sum of the selected.",
    )


def baseline_control() -> None:
    """Draw the choice of baseline, on Explore and Compare; see `chosen_baseline`."""
    _criterion_list("Compare with", "baseline", BASELINES, _preset_label)


def _criterion_list(
    label: str, key: str, options: Sequence[str], words: Callable[[str], str]
) -> None:
    st.selectbox(
        label,
        options,
        index=options.index(DEFAULTS[key]),
        key=key,
        bind="query-params",
        format_func=words,
        width=175,
    )


def _preset_label(name: str | tuple[str, str]) -> str:
    if isinstance(name, tuple):
        return "AIMER with Magnitude"
    criterion = get_criterion(name)
    is_named = name in CRITERIA and criterion.exponents  # S(1,1,2) has its exponents in the name
    return criterion.label + (f"  {criterion.exponents}" if is_named else "")
