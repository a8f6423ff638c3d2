"""Fields that the forms of the Evaluate page share: criteria, sparsities, whose statistics rank."""

from typing import Any, Final

import streamlit as st

from analysis.criteria import CRITERIA
from app.literal import literal
from app.session.state import View

_SPARSITIES: Final = ("25%", "50%", "75%")
_CRITERIA: Final = ("reap", "frequency", "random")


def sweep_fields(view: View, prefix: str) -> dict[str, Any]:
    """Draw criteria, sparsities and whose statistics rank; what they say.

    Args:
        view: the page's.
        prefix: of the keys of the widgets.
    """
    criteria = st.multiselect(
        "Criteria",
        list(CRITERIA),
        default=_CRITERIA,
        format_func=lambda name: CRITERIA[name].label,
        key=f"{prefix}.criteria",
    )
    first, second = st.columns(2)
    sparsities = first.multiselect(
        "Sparsities", _SPARSITIES, default=["50%"], key=f"{prefix}.sparsities"
    )
    calibrated = second.selectbox(
        "Statistics of",
        list(view.runs),
        key=f"{prefix}.calibrated",
        placeholder="no statistics",
        format_func=literal,
    )
    return {
        "criteria": tuple(criteria),
        "sparsities": tuple(sparsities),
        "calibrated_on": (calibrated,) if calibrated else (),
    }
