"""The Evaluate page: the form that measures the plan of the Plan page, or criteria."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import streamlit as st

from app.charts.context import Context
from app.frame.job_form import offer_job, queue_button
from app.literal import literal
from app.parts.evaluate.candidates import plan_name
from app.parts.evaluate.sweep_fields import DTYPES, dtype_field, sweep_fields
from app.session.job_queue import own_model
from app.session.plan_state import noted_plan
from app.session.texts import held_out_texts
from pruning.evaluate.record import EvaluationRecord
from pruning.planning.make import CurrentPlan
from pruning.requests.base import validated
from pruning.requests.evaluation import EvaluateRequest, SweepRequest

_PLAN: Final = "plan"
_WHAT: Final = {_PLAN: "The plan on the Plan page", "sweep": "Criteria at sparsities"}


def evaluation_form(context: Context, records: Sequence[EvaluationRecord]) -> None:
    """Queue an evaluation as a job; `records` are what the model has, which it should be like."""
    st.markdown("**Evaluate more**, on held-out text.")
    noted = noted_plan(context.model)
    chosen = st.segmented_control(
        "What is measured",
        list(_WHAT),
        default=_PLAN if noted else "sweep",
        required=True,
        key="evaluate.what",
        format_func=_WHAT.__getitem__,
    )
    if chosen != _PLAN:
        _sweep_form(context, records)
    elif noted is not None:
        _plan_form(context, noted, records)
    else:
        no_plan_part()


def no_plan_part() -> None:
    """Says where the plan of the Plan page comes from, for a session that has none."""
    with st.container(horizontal=True, vertical_alignment="center"):
        st.text(
            "The Plan page has shown no plan of this model yet, or one from a file, which a reload "
            "forgets. Open it, and what it shows is offered here: searched, by hand, of neurons or "
            "from a file."
        )
        st.page_link("views/plan.py", label="Plan", icon=":material/tune:")


def _plan_form(context: Context, noted: CurrentPlan, records: Sequence[EvaluationRecord]) -> None:
    st.text(f"{plan_name(noted)}, as the Plan page last showed it.")
    with st.form("evaluate.plan", border=False):
        values = _texts_and_numbers(context, records)
        sent = queue_button()
    if not values["corpora"]:
        st.text("Choose at least one text.")
        return
    asked = {**own_model(context), **values, "plans": (noted.plan.to_dict(),)}
    request = validated(EvaluateRequest, asked)
    offer_job(context, request, plan_name(noted), sent=sent, plan=noted)


def _sweep_form(context: Context, records: Sequence[EvaluationRecord]) -> None:
    with st.form("evaluate.sweep", border=False):
        values = sweep_fields(context, "evaluate") | _texts_and_numbers(context, records)
        sent = queue_button()
    if not (values["criteria"] and values["sparsities"] and values["corpora"]):
        st.text("Choose at least one criterion, one sparsity and one text.")
        return
    request = validated(SweepRequest, {**own_model(context), **values})
    offer_job(context, request, context.model.name, sent=sent)


def _texts_and_numbers(context: Context, records: Sequence[EvaluationRecord]) -> dict[str, Any]:
    """Draw on what, on how much and how precisely; as fields of a request."""
    texts = held_out_texts(context)
    corpora = st.multiselect(
        "Held-out texts",
        texts,
        default=texts[:1],
        key="evaluate.corpora",
        format_func=literal,
    )
    samples = st.select_slider(
        "Samples of each text", (8, 16, 32, 64, 128), value=64, key="evaluate.samples"
    )
    dtype = dtype_field(
        usual_type(records),
        "evaluate.dtype",
        "At first as most evaluations here: what was computed otherwise is a line of its own.",
    )
    return {"corpora": tuple(corpora), "samples": samples, "dtype": dtype}


def usual_type(records: Sequence[EvaluationRecord]) -> str:
    """The element type that most evaluations ran in, where the form has it; else auto."""
    ran = Counter(record.settings["dtype"] for record in records)
    return next((name for name, _ in ran.most_common(1) if name in DTYPES), "auto")
