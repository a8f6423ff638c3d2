"""Fields that the forms of the Evaluate page share: criteria, sparsities, texts."""

from typing import Any, Final

import streamlit as st

from analysis.criteria import CRITERIA
from analysis.demo.texts import TEXTS
from analysis.model import DEMO_MODEL
from app.literal import literal
from app.requests.base import Request
from app.session import data
from app.session.state import View

_SPARSITIES: Final = ("25%", "50%", "75%")
_CRITERIA: Final = ("reap", "frequency", "random")


def held_out_texts(view: View) -> list[str]:
    """What a model can be measured on here: the demo's texts, and files of the models folder."""
    return [*(TEXTS if view.model.name == DEMO_MODEL else ()), *data.text_files()]


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


def shown_request(view: View, request: Any) -> Any:
    """A request as a command line typed in the working directory would name model and folder."""
    names: dict[str, Any] = {"model": data.shown_model(view.model)}
    if "stats_dir" in type(request).model_fields:
        names["stats_dir"] = data.shown_stats_dir()
    shown: Request = request.model_copy(update=names)
    return shown


def own_model(view: View) -> dict[str, Any]:
    """`model` and `stats_dir` of a request that a job works on."""
    return {"model": str(view.model.checkpoint.path), "stats_dir": data.settings().stats_dir}
