"""The guided tour: a dialog that walks over the pages. It opens when asked for, and never again."""

from dataclasses import dataclass
from pathlib import Path

import streamlit as st

from app.frame.presentation import go_to

_STEP = "tour.step"
_VIEWS = Path(__file__).parents[1] / "views"


@dataclass(frozen=True, slots=True)
class Step:
    """One stop."""

    page: str
    title: str
    text: str


STEPS = (
    Step(
        "",
        "What is known of your model",
        "A criterion ranks experts by statistics of a calibration run. The table lists those that "
        "are there; the form below it starts another. The demo has three texts.",
    ),
    Step(
        "explore",
        "Which experts a criterion keeps",
        "Each row is a layer, each cell an expert, the first to keep on the left; what is right of "
        "the line goes. Change b, alpha and beta above and see who moves. Click an expert to "
        "follow it.",
    ),
    Step(
        "explore",
        "Does the choice depend on the text?",
        "Below, the overlap map has a cell for each variant: the share of pruned experts on which "
        "the calibration texts agree. Click a cell to take its exponents.",
    ),
    Step(
        "compare",
        "Where two recipes disagree",
        "Two criteria, texts or sparsities side by side: who keeps what, in which layers they "
        "differ, and the experts that only one of them keeps.",
    ),
    Step(
        "plan",
        "Where the budget goes",
        "A schedule spreads the removed experts over the layers. All schedules spend the same "
        "number; the bars can be moved by hand.",
    ),
    Step(
        "evaluate",
        "What is lost, what is saved",
        "What pruning costs this model on held-out text, for every candidate that was measured; "
        "beside it benchmarks, hidden states, and both models' answers to a prompt. Under The "
        "papers: what they report for their models, which says what is worth a try.",
    ),
    Step(
        "export",
        "The checkpoint to ship",
        "What is checked before a byte is written, the export as a job that survives a reload, and "
        "the proof that the result computes what it should. Every page shows its command line.",
    ),
)


def tour_button() -> None:
    """The way in; for the sidebar."""
    st.button(
        "Guided tour",
        key="tour.begin",
        icon=":material/signpost:",
        width="stretch",
        on_click=_go_to,
        args=(0,),
    )


def is_on_tour() -> bool:
    """Whether a dialog of the tour is to be shown; a run may have only one dialog."""
    return _place() is not None


def show_tour(page: str) -> None:
    """The dialog of the current step, on its page; nothing when no tour was begun."""
    place = _place()
    if place is None:
        return
    step = STEPS[place]
    if step.page != page:
        go_to(_VIEWS / f"{step.page or 'start'}.py")
    dialog = st.dialog(
        f"{place + 1} of {len(STEPS)}: {step.title}", position="right", on_dismiss=_leave
    )
    dialog(_stop)(place)


def _stop(place: int) -> None:
    st.markdown(STEPS[place].text)
    with st.container(horizontal=True):
        if place > 0 and st.button("Back", key="tour.back", shortcut="Left"):
            _go_to(place - 1)
            st.rerun()
        if place + 1 < len(STEPS):
            if st.button("Next", key="tour.next", type="primary", shortcut="Right"):
                _go_to(place + 1)
                st.rerun()
        elif st.button("Done", key="tour.done", type="primary", shortcut="Right"):
            _leave()
            st.rerun()
    st.text("Escape leaves the tour; you stay on the page that you see.")


def _go_to(place: int) -> None:
    st.session_state[_STEP] = place


def _leave() -> None:
    # Also where the dialog is closed by Escape: it must not open again with the next click.
    st.session_state.pop(_STEP, None)


def _place() -> int | None:
    place = st.session_state.get(_STEP)
    return place if isinstance(place, int) and 0 <= place < len(STEPS) else None
