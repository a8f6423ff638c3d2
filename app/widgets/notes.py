"""Cards, notes, refusals and command lines on pages."""

import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import streamlit as st
from pydantic import ValidationError

from analysis.errors import UserError, sentence
from analysis.files.shipped import DEMO_MODEL
from analysis.model.loadable import unloadable
from analysis.model.moe_model import MoEModel
from app.errors import show_error
from app.literal import literal
from app.report.sentences import DEMO_NOTE
from app.session.plan_state import REFUSED
from pruning.plan.size_words import change_words
from pruning.plan.sizes import format_bytes
from pruning.spec.base import plain_problem, raised_by

logger = logging.getLogger(__name__)
NO_CALIBRATION: Final = "No calibration yet: start one on the **Start** page."


def inform(text: str) -> None:
    """Show why there is nothing to draw, or what to do; `text` is Markdown."""
    st.info(text, icon=":material/info:")


@contextmanager
def in_a_sentence(besides: str = "") -> Iterator[None]:
    """Show a problem of a person's choices or of recorded data as a sentence instead of a trace.

    Not if it is `besides`, which the page shows. No other place makes sentences of problems.
    """
    try:
        yield
    except UserError as error:
        if str(error) != besides:
            show_error(error)
    except ValidationError as error:
        # Of recorded data that no request allows; a fault of the program would look the same.
        logger.warning("A page was refused a value.", exc_info=error)
        problem = error.errors(include_url=False)[0]
        name = ".".join(map(str, problem["loc"]))
        reason = str(raised_by(problem) or sentence(plain_problem(problem)))
        show_error(f"{name}: {reason}" if name else reason)


def refusal_part() -> None:
    """Show once why the last edit or file was refused."""
    if reason := st.session_state.pop(REFUSED, ""):
        show_error(reason)


def cannot_run(model: MoEModel) -> bool:
    """Whether a model cannot be run here, which is then said."""
    if why := unloadable(model):
        inform(
            f"{literal(model.name)} can be planned and exported, but neither calibrated nor "
            f"evaluated: {literal(why)}."
        )
    return bool(why)


def say_if_demo(model: MoEModel) -> None:
    """Say that nothing follows for other models, if this is the demo."""
    if model.name == DEMO_MODEL:
        st.text(DEMO_NOTE)


def show_command(*lines: str, heading: str = "") -> None:
    """Show command lines, below a heading if there is one."""
    if heading:
        st.markdown(f"**{heading}**")
    st.code("\n".join(lines), language=None, wrap_lines=True)


def card(
    label: str,
    value: str,
    below: str | None = None,
    *,
    note: str | None = None,
    place: Any = st,
) -> None:
    """Draw a card of the height of its neighbours.

    The line below gives the total or the comparison, neither green nor red.
    """
    place.metric(
        label,
        value,
        below,
        border=True,
        height="stretch",
        help=note,
        delta_color="off",
        delta_arrow="off",
    )


def against_chance(share: float, chance: float) -> tuple[str, str]:
    """A share, and its difference from chance, for a card; "-" for no share."""
    return (
        ("-", "")
        if math.isnan(share)
        else (f"{share:.0%}", f"{(share - chance) * 100:+z.0f} pp vs chance")
    )


def badge(words: str, *, is_good: bool = True) -> None:
    """A green badge with a check mark, or an orange one with a warning sign."""
    if is_good:
        st.badge(words, icon=":material/check:", color="green")
    else:
        st.badge(words, icon=":material/warning:", color="orange")


def saved_metric(
    draw: Callable[..., object], label: str, before: int, after: int, note: str | None = None
) -> None:
    """Bytes, and what is saved or added; `draw` is `st.metric` or a column's."""
    less, is_changed = before - after, before != after
    below = f"-{format_bytes(less)} ({less / before:.0%})" if less > 0 else ""
    draw(
        label,
        format_bytes(after),
        below or change_words(before, after),
        delta_color="inverse" if is_changed else "off",
        delta_arrow="auto" if is_changed else "off",
        border=True,
        height="stretch",
        help=note,
    )
