"""The criterion controls: family, exponent toggles, presets, gate convention, baseline."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import streamlit as st

from analysis.criteria import CRITERIA
from analysis.stats.tables import GATES
from app.components.expert_map import Arrangement, Mode
from app.session.state import (
    CRITERION_OPTIONS,
    DEFAULTS,
    PRESETS,
    UNIFIED,
    apply_pair,
    apply_preset,
    use_unified,
)

Choice = TypeVar("Choice", bound=str)
Value = TypeVar("Value")
UNIFIED_LABEL = "Unified S(b, α, β)"  # noqa: RUF001  (Greek on purpose)
ORDERS: Mapping[Arrangement, str] = {"rank": "By rank", "expert": "By expert"}
MODES: Mapping[Mode, str] = {"values": "Saliency", "mask": "Kept", "delta": "Rank change"}
_TOGGLES = (
    ("b", "Average over routed tokens  $b$", (0, 1), "0 sums over tokens, 1 averages."),
    ("alpha", r"Gate exponent  $\alpha$", (0, 1, 2), "Power of the router's gate weight."),
    ("beta", r"Activation exponent  $\beta$", (0, 1, 2), "Power of the norm of the output."),
)


def one_of(value: object, options: Sequence[Value], usual: Value | None = None) -> Value:
    """Validate a widget value: it, if it is one of the options; else `usual`, or the first."""
    first = options[0] if usual is None else usual
    return next((option for option in options if option == value), first)


def choose(
    label: str, options: Sequence[Value], usual: Value | None = None, **widget: Any
) -> Value:
    """Draw a list of options; the one that is chosen, at first `usual` or the first."""
    first = one_of(usual, options)
    chosen = st.selectbox(label, options, index=options.index(first), **widget)
    return one_of(chosen, options, first)


def switch(label: str, key: str, options: Mapping[Choice, str]) -> Choice:
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


def criterion_controls(*, baseline: bool) -> None:
    """Draw the controls; `chosen_criterion` is what they say."""
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        st.selectbox(
            "Criterion",
            CRITERION_OPTIONS,
            index=CRITERION_OPTIONS.index(DEFAULTS["criterion"]),
            key="criterion",
            bind="query-params",
            format_func=lambda name: UNIFIED_LABEL if name == UNIFIED else CRITERIA[name].label,
            width=240,
        )
        for key, label, options, note in _TOGGLES:
            st.segmented_control(
                label,
                options,
                default=DEFAULTS[key],
                key=key,
                bind="query-params",
                required=True,
                on_change=use_unified,
                help=note,
            )
        st.menu_button(
            "Presets",
            PRESETS,
            key="preset",
            on_click=lambda: apply_preset(st.session_state.get("preset")),
            format_func=_preset_label,
            icon=":material/bookmarks:",
        )
        if baseline:
            st.button(
                "AIMER beside Magnitude",
                key="pair",
                on_click=apply_pair,
                args=("aimer", "magnitude"),
                icon=":material/compare:",
                help="The two criteria that read weights only, side by side.",
            )
        _second_row(baseline=baseline)


def _second_row(*, baseline: bool) -> None:
    st.segmented_control(
        "Gate weights",
        GATES,
        default=DEFAULTS["gate"],
        key="gate",
        bind="query-params",
        required=True,
        format_func=str.capitalize,
        help="Applied: as the model multiplies. Renormalized: divided by the sum of the selected.",
    )
    if baseline:
        st.selectbox(
            "Compare with",
            list(CRITERIA),
            index=list(CRITERIA).index(DEFAULTS["baseline"]),
            key="baseline",
            bind="query-params",
            format_func=lambda name: CRITERIA[name].label,
            width=200,
            help="The criterion on the left, to compare with.",
        )


def _preset_label(name: str) -> str:
    exponents = CRITERIA[name].exponents
    return CRITERIA[name].label + (f"  {exponents}" if exponents else "")
