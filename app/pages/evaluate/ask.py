"""Evaluate, ask both models: a prompt, and the answers side by side."""

from collections.abc import Sequence
from typing import Final

import streamlit as st

from analysis.files.shipped import DEMO_MODEL
from app.charts.evaluations import plan_name
from app.jobs.model import Job
from app.loaded import Loaded
from app.session.data import records_of
from app.session.job_queue import own_model
from app.session.prompts import chosen_records, own_words
from app.session.state import one_of
from app.widgets.answers import answers_part
from app.widgets.controls import choose
from app.widgets.job_form import offer_job
from pruning.actions.ask import AskRequest
from pruning.records.kept_answers import AnswerRecord, AnswerStore
from pruning.spec.base import validated

QUESTION: Final = "question"  # key of the control, in the URL: the id of a pair of answers
_FIRST: Final = "ask.first"  # session: the answers that the list began with
_LENGTHS: Final = (16, 32, 64, 128, 256, 512)


def ask_part(loaded: Loaded) -> None:
    """The prompt form with its progress, and answers below it, each with its own prompt."""
    st.markdown(
        "**Ask both models**: both continue the same prompt with greedy decoding. Text after the "
        "first difference is highlighted."
    )
    with st.container(border=True):
        job = _question(loaded)
    every = sorted(records_of(loaded, AnswerStore), key=lambda record: record.created_at)[::-1]
    if job is not None and job.request.get("prompt"):
        return  # an older answer would stand below the new prompt
    records = chosen_records(every, AnswerStore, names=_names(every), key=QUESTION, noun="answers")
    if not records:
        st.text("No answers yet.")
        return
    last_prompts, digest = own_words()[-1:], loaded.shown.plan.digest if loaded.shown else ""
    # The last question of this session first, then what the plan on screen answered.
    records.sort(
        key=lambda record: (record.prompt not in last_prompts, record.plan_digest != digest)
    )
    with st.container(border=True):
        _answers(records)


def _question(loaded: Loaded) -> Job | None:
    """Draw the form; return the question that is being answered."""
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
        return None
    if not prompt.strip():
        st.text("Enter a prompt.")
        return None
    fields = {
        **own_model(loaded),
        "prompt": prompt,
        "plans": (current_plan.plan.to_dict(),),
        "max_new_tokens": one_of(length, _LENGTHS),
    }
    sent = st.button("Ask both", type="primary", icon=":material/forum:", key="ask.send")
    about = " ".join(prompt.split())[:60]
    return offer_job(loaded, validated(AskRequest, fields), about, sent=sent, plan=current_plan)


def _names(records: Sequence[AnswerRecord]) -> dict[str, str]:
    """Id of each pair of answers -> its words in the list."""
    return {
        record.record_id: f"{' '.join(record.prompt.split())[:60]} ({plan_name(record)})"
        for record in records
    }


def _answers(records: Sequence[AnswerRecord]) -> None:
    """The answers to the chosen prompt, by default the first."""
    names = _names(records)
    chosen = records[0].record_id
    if st.session_state.get(_FIRST, chosen) != chosen:  # a newer answer, or another plan
        st.session_state[QUESTION] = chosen
    st.session_state[_FIRST] = chosen
    if len(records) > 1:
        words = names.__getitem__
        chosen = choose(
            "Question", list(names), key=QUESTION, bind="query-params", format_func=words
        )
    answers_part(next(record for record in records if record.record_id == chosen))
