"""The one place where problems of a person's choices or of recorded data become a sentence."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import streamlit as st
from pydantic import ValidationError

from analysis.errors import UserError, sentence
from app.errors import show_error
from app.session.plan_state import REFUSED
from pruning.spec.base import plain_problem, raised_by

logger = logging.getLogger(__name__)


@contextmanager
def in_a_sentence(besides: str = "") -> Iterator[None]:
    """Show such a problem instead of a trace, unless it is `besides`, which the page shows."""
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
