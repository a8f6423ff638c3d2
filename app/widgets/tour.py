"""The guided tour: a panel over the pages."""

from dataclasses import dataclass
from typing import Literal

import streamlit as st

from app.components.focus import keep_focus
from app.widgets.links import FIRST, go_to, page_at

_STEP, _MOVES = "tour.step", "tour.moves"
Kind = Literal["primary", "secondary", "tertiary"]


@dataclass(frozen=True, slots=True)
class Step:
    """One stop."""

    page: str
    title: str
    text: str
    target: str = ""  # CSS selector of its target; empty for the top of the page


STEPS = (
    Step(
        "",
        "What pruning saves and costs",
        "What the plan saves, and its loss on each corpus compared with Random and the original "
        "model. The calibration runs are below, in Data and jobs.",
    ),
    Step(
        "explore",
        "Which experts a criterion keeps",
        "Each row is a layer, each cell an expert, most salient on the left; experts right of the "
        "line are pruned. Change b, alpha and beta and watch the order. Click an expert to follow "
        "it.",
        ".st-key-explore-map",
    ),
    Step(
        "explore",
        "Does the choice depend on the corpus?",
        "The overlap map has a cell for each variant: the share of pruned experts on which the "
        "calibration corpora agree. Click a cell to apply its exponents.",
        ".st-key-tab",
    ),
    Step(
        "compare",
        "Where two recipes disagree",
        "Two criteria, corpora or sparsities side by side: who keeps what, in which layers they "
        "differ, and the experts that only one of them keeps.",
    ),
    Step(
        "plan",
        "Where the budget goes",
        "A schedule splits the pruned experts across layers. All schedules prune the same number; "
        "drag a bar to change the counts.",
        ".st-key-plan-editor",
    ),
    Step(
        "evaluate",
        "Quality and memory",
        "Loss on held-out samples of every measured candidate, with benchmarks, hidden states, and "
        "both models' answers to a prompt.",
    ),
    Step(
        "export",
        "The checkpoint to ship",
        "Checks before writing, the export as a job that survives a reload, and verification of "
        "the result. Every page shows its command line.",
        ".st-key-export-start",
    ),
)


def tour_button() -> None:
    """The start button in the sidebar."""
    st.button(
        "Guided tour",
        key="tour.begin",
        icon=":material/signpost:",
        width="stretch",
        on_click=_go_to,
        args=(0,),
    )


def show_tour(page: str) -> None:
    """Show the panel of the current stop on its page; nothing without a tour."""
    place = st.session_state.get(_STEP)
    if place is None:
        keep_focus()
        return
    step = STEPS[place]
    # Only tour buttons change the page; users who navigate away stay there.
    if st.session_state.pop(_MOVES, False) and step.page != page:
        go_to(page_at(step.page or FIRST))
    with st.container(key="tour", border=True):
        st.markdown(f"**{place + 1} of {len(STEPS)}: {step.title}**")
        st.markdown(step.text)
        with st.container(horizontal=True):
            if place > 0:
                _button("Back", place - 1, "Ctrl+Left", "secondary")
            if place + 1 < len(STEPS):
                _button("Next", place + 1, "Ctrl+Right", "primary")
            _button("Leave", None, "Escape", "tertiary")
    keep_focus(place, step.target if step.page == page else "")


def _button(label: str, place: int | None, shortcut: str, kind: Kind) -> None:
    key, move = f"tour.{label.lower()}", (place,)
    st.button(label, key=key, shortcut=shortcut, type=kind, on_click=_go_to, args=move)


def _go_to(place: int | None) -> None:
    st.session_state[_STEP] = place
    st.session_state[_MOVES] = True
