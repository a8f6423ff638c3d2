"""Evaluate: the form that evaluates the plan or criteria."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import streamlit as st

from app.charts.context import Context
from app.frame.job_form import offer_job, queue_button
from app.literal import literal
from app.parts.evaluate.sweep_fields import dtype_field, samples_field, sweep_fields
from app.session.job_queue import own_model
from app.session.texts import held_out_texts
from pruning.evaluate.record import EvaluationRecord
from pruning.requests.base import validated
from pruning.requests.evaluation import EvaluateRequest, SweepRequest

_PLAN: Final = "plan"
_WHAT: Final = {_PLAN: "Your plan", "sweep": "Criteria at sparsities"}


def evaluation_form(context: Context, records: Sequence[EvaluationRecord]) -> None:
    """Form that queues an evaluation; existing `records` set its defaults."""
    plan = context.shown
    chosen = st.segmented_control(
        "Evaluate",
        list(_WHAT),
        default=_PLAN if plan else "sweep",
        required=True,
        key="evaluate.what",
        format_func=_WHAT.__getitem__,
    )
    if chosen != _PLAN:
        plan = None
    elif plan is None:
        st.text("There is no plan; see the bar above.")
        return
    with st.form(f"evaluate.{_PLAN if plan else 'sweep'}", border=False):
        values = {} if plan else sweep_fields(context, "evaluate")
        values |= _texts_and_numbers(context, records)
        sent = queue_button("Run evaluation")
    if plan and not values["corpora"]:
        st.text("Choose at least one corpus.")
    elif plan:
        asked = {**own_model(context), **values, "plans": (plan.plan.to_dict(),)}
        offer_job(context, validated(EvaluateRequest, asked), plan.name, sent=sent, plan=plan)
    elif not (values["criteria"] and values["sparsities"] and values["corpora"]):
        st.text("Choose at least one criterion, one sparsity and one corpus.")
    else:
        request = validated(SweepRequest, {**own_model(context), **values})
        offer_job(context, request, context.model.name, sent=sent)


def _texts_and_numbers(context: Context, records: Sequence[EvaluationRecord]) -> dict[str, Any]:
    """Draw corpora, sample count and dtype; return request fields."""
    texts = held_out_texts(context)
    corpora = st.multiselect(
        "Held-out corpora", texts, default=texts[:1], key="evaluate.corpora", format_func=literal
    )
    # Default: the dtype of most evaluations, if offered.
    ran = Counter(record.settings["dtype"] for record in records).most_common(1)
    return {
        "corpora": tuple(corpora),
        "samples": samples_field("Samples per corpus", "evaluate"),
        "dtype": dtype_field(
            ran[0][0] if ran else "auto",
            "evaluate.dtype",
            "Defaults to the dtype of most evaluations here; other dtypes get their own lines.",
        ),
    }
