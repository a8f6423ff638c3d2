"""The palette: goes to any page, criterion, pinned or measured plan, or expert."""

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import streamlit as st

from analysis.criteria import NEURON_CRITERIA, criterion_label
from app.charts.evaluations import series_name
from app.components.palette import opened, palette, picked
from app.loaded import Loaded
from app.session.chosen_expert import open_expert, read_place
from app.session.measured_plan import open_measured, why_not_shown
from app.session.pinned_plans import open_pin
from app.session.pins import pin_named, words_of_pins
from app.session.plan_state import forget_import
from app.session.state import (
    BASELINES,
    PINNED,
    apply_criterion,
    ask_page,
    criterion_words,
    is_about_neurons,
)
from pruning.records.quality import PlanLoss

KEY: Final = "palette"


def palette_part(loaded: Loaded, pages: Mapping[str, str]) -> None:
    """Share, and the palette; `pages` are the labels of pages by their URL paths."""
    pins = words_of_pins(loaded.model) if st.session_state.get(PINNED) else {}
    payload = {
        "model": loaded.model.identity,
        "pages": list(pages.items()),
        "criteria": list(_criteria().items()),
        "layers": [(layer.index, layer.num_experts) for layer in loaded.model.layers],
        "pins": list(pins.items()),
        # As long as nobody opens it, no plan is looked at.
        "plans": list(_plans(loaded).items()) if opened(KEY) else None,
    }
    palette(payload, key=KEY, on_pick=partial(_go, loaded, frozenset(pages)))


def _criteria() -> dict[str, str]:
    if is_about_neurons():
        return {name: criterion_label(name) for name in NEURON_CRITERIA}
    return {name: criterion_words(name) for name in BASELINES}


def _plans(loaded: Loaded) -> dict[str, str]:
    """Measured plans that controls can show, in own bits, the least loss first: digest -> words."""
    losses = [
        loss for loss in loaded.study.losses if not (loss.way or loss.missing or loss.facts.bits)
    ]
    plans: dict[str, str] = {}
    for loss in sorted(losses, key=lambda plan_loss: plan_loss.mean):
        if loss.plan not in plans and not why_not_shown(loaded, loss):
            plans[loss.plan] = _words(loss)
    return plans


def _words(loss: PlanLoss) -> str:
    name = series_name({**loss.facts.columns, "plan": loss.plan})
    return f"{name}, {loss.facts.removed or 0:.0%}: loss {loss.mean:+z.2f}"


def _go(loaded: Loaded, pages: frozenset[str]) -> None:
    """Go to the picked entry; for the callback."""
    entry: Any = picked(KEY)
    match entry:
        case ("page", name) if name in pages:
            ask_page(name)
        case ("criterion", name) if name in _criteria():
            forget_import()
            if is_about_neurons():
                st.session_state["neurons"] = name
            else:
                apply_criterion(name)
        case ("pinned plan", name) if pin := pin_named(name, loaded.model):
            open_pin(loaded, pin)
        case ("plan", digest):
            open_measured(loaded, digest)
        case ("expert", name) if place := read_place(name, loaded.model.layers):
            open_expert(place)
