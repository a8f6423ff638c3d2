"""Evaluate, ask both models: a prompt, and the answers side by side."""

from collections.abc import Sequence
from typing import Final

import streamlit as st

from analysis.model import DEMO_MODEL
from app.charts.evaluations import plan_name
from app.loaded import Loaded
from app.session.data import records_of
from app.session.job_queue import own_model
from app.session.state import one_of
from app.widgets.answers import answers_part
from app.widgets.controls import choose
from app.widgets.job_form import offer_job
from pruning.evaluate.record import AnswerRecord, AnswerStore
from pruning.requests.base import validated
from pruning.requests.evaluation import AskRequest

_LENGTHS: Final = (16, 32, 64, 128, 256, 512)


def ask_part(loaded: Loaded) -> None:
    """The prompt form, and the newest answers below it."""
    st.markdown(
        "**Ask both models**: both continue the same prompt with greedy decoding. Text after the "
        "first difference is highlighted."
    )
    with st.container(border=True):
        _question(loaded)
    records = sorted(records_of(loaded, AnswerStore), key=lambda each: each.created_at)[::-1]
    if not records:
        st.text("No answers yet. They appear here and survive a reload.")
        return
    digest = loaded.shown.plan.digest if loaded.shown else ""
    # The newest of the plan on screen first.
    records.sort(key=lambda each: each.plan_digest != digest)
    with st.container(border=True):
        _answers(records)


def _question(loaded: Loaded) -> None:
    current_plan = loaded.shown
    prompt = st.text_area(
        "Prompt",
        value="Solve for x: 4 * x + 3 = 23." if loaded.model.name == DEMO_MODEL else "",
        key=f"ask.prompt.{loaded.model.name}",
        max_chars=20_000,
        placeholder="Prompt for both models",
    )
    length = st.select_slider("Max new tokens", _LENGTHS, value=64, key="ask.tokens")
    if current_plan is None:
        st.text("There is no plan; see the bar above.")
        return
    if not prompt.strip():
        st.text("Enter a prompt.")
        return
    fields = {
        **own_model(loaded),
        "prompt": prompt,
        "plans": (current_plan.plan.to_dict(),),
        "names": (current_plan.name,),
        "max_new_tokens": one_of(length, _LENGTHS),
    }
    sent = st.button("Ask both", type="primary", icon=":material/forum:", key="ask.send")
    about = " ".join(prompt.split())[:60]
    offer_job(loaded, validated(AskRequest, fields), about, sent=sent, plan=current_plan)


def _answers(records: Sequence[AnswerRecord]) -> None:
    """The answers to the chosen prompt, by default the first."""
    names = {
        each.record_id: f"{' '.join(each.prompt.split())[:60]} ({plan_name(each)})"
        for each in records
    }
    chosen = records[0].record_id
    if len(records) > 1:
        # A newer answer or another plan gives a new list, which starts with it.
        key = f"ask.question.{chosen}"
        chosen = choose("Question", list(names), key=key, format_func=names.__getitem__)
    answers_part(next(each for each in records if each.record_id == chosen))
