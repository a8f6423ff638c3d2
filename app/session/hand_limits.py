"""Experts that a person keeps or drops whatever the criterion says: the limits of the plan."""

from typing import Final, Literal

import streamlit as st

from analysis.errors import PlanError
from app.literal import literal
from app.session.chosen_expert import Place
from app.session.plan_state import forget_import
from pruning.plan.layer_words import experts_words, parse_experts
from pruning.spec.spec import PlanSpec

Limit = Literal["pin", "drop"]  # fields of the spec, and keys of their controls
_LIMITS: Final[tuple[Limit, ...]] = ("pin", "drop")


def limit_of(spec: PlanSpec, place: Place) -> Limit | None:
    """The limit that a plan has on an expert."""
    layer, expert = place
    if expert in spec.limits.pin.get(layer, ()):
        return "pin"
    return "drop" if expert in spec.limits.drop.get(layer, ()) else None


def set_limit(place: Place, limit: Limit | None) -> None:
    """Keep or drop an expert, or leave it to the criterion; for callbacks."""
    try:
        texts: dict[str, str] = {
            name: changed_limit(_text(name), place, is_limited=name == limit) for name in _LIMITS
        }
    except PlanError as error:  # as typed; the bar says so too
        st.toast(literal(error))
        return
    forget_import()
    st.session_state.update(texts)


def changed_limit(text: str, place: Place, *, is_limited: bool) -> str:
    """Limits such as "3:5,7-9" with an expert among them, or without it."""
    layer, expert = place
    experts = parse_experts(text.replace(";", " ").split())
    ids = experts.get(layer, frozenset())
    experts[layer] = ids | {expert} if is_limited else ids - {expert}
    return " ".join(experts_words({layer: sorted(ids) for layer, ids in experts.items() if ids}))


def _text(limit: Limit) -> str:
    return str(st.session_state.get(limit) or "")
