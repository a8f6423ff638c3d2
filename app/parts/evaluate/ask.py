"""The Evaluate page, ask both models: a prompt, and the answers of full and pruned side by side."""

import html
from collections.abc import Sequence
from itertools import takewhile
from typing import Final

import streamlit as st

from analysis.model import DEMO_MODEL
from app.charts.context import Context
from app.frame.controls import choose, one_of
from app.frame.job_form import offer_job
from app.jobs.model import Job, JobState
from app.literal import literal
from app.session.job_queue import job_store, own_model
from pruning.requests.base import validated
from pruning.requests.evaluation import AskRequest

_LENGTHS: Final = (16, 32, 64, 128, 256, 512)
# A tint that leaves the text its contrast in the light and in the dark theme, and a line below.
_STYLE: Final = """
<style>
pre.answer { white-space: pre-wrap; overflow-wrap: anywhere; margin: 0;
  font-family: "Source Code Pro", monospace; font-size: 0.9rem; }
pre.answer mark { background: rgba(230, 159, 0, 0.25); color: inherit;
  border-bottom: 2px solid #d55e00; }
</style>
"""


def ask_part(context: Context) -> None:
    """The question, and below it the newest answers."""
    st.markdown(
        "**Ask both models**: the full and the pruned one continue the same prompt, each time with "
        "the most probable token. Marked is what follows their first difference."
    )
    with st.container(border=True):
        _question(context)
    path = str(context.model.checkpoint.path)
    asked = [
        job
        for job in job_store().list(kinds=("ask",))
        if job.state is JobState.DONE and job.request.get("model") == path
        if (job.result or {}).get("answers")
    ]
    if not asked:
        st.text("No answers yet: they appear here, and stay when the page is loaded again.")
        return
    with st.container(border=True):
        _answers(asked)


def _question(context: Context) -> None:
    shown = context.shown
    prompt = st.text_area(
        "Prompt",
        value="Solve for x: 4 * x + 3 = 23." if context.model.name == DEMO_MODEL else "",
        key=f"ask.prompt.{context.model.name}",
        max_chars=20_000,
        placeholder="What both models should answer",
    )
    length = st.select_slider("Tokens of an answer, at most", _LENGTHS, value=64, key="ask.tokens")
    if shown is None:
        st.text("There is no plan; the bar above says why.")
        return
    if not prompt.strip():
        st.text("Write a prompt.")
        return
    request: AskRequest = validated(
        AskRequest,
        {
            "model": own_model(context)["model"],
            "prompt": prompt,
            "plans": (shown.plan.to_dict(),),
            "names": (shown.name,),
            "max_new_tokens": one_of(length, _LENGTHS),
        },
    )
    sent = st.button("Ask both", type="primary", icon=":material/forum:", key="ask.send")
    offer_job(context, request, " ".join(prompt.split())[:60], sent=sent, plan=shown)


def _answers(asked: Sequence[Job]) -> None:
    headlines = {
        job.id: literal(f"{job.title} ({', '.join(map(str, job.request.get('names', ())))})")
        for job in asked
    }
    chosen = asked[0].id
    if len(asked) > 1:
        names = list(headlines)
        chosen = choose("Question", names, key="ask.question", format_func=headlines.__getitem__)
    (job,) = (each for each in asked if each.id == chosen)
    st.text(str(job.request["prompt"]))
    answers = (job.result or {})["answers"]
    full = str(answers[0]["text"])
    st.html(_STYLE)
    for number, (answer, place) in enumerate(zip(answers, st.columns(len(answers)), strict=True)):
        is_full = number == 0
        tokens, agreed = int(answer["num_tokens"]), int(answer["agreed"])
        same = "" if is_full else f", the first {agreed} as the full model"
        with place:
            st.markdown(f"**{'Full model' if is_full else literal(answer['name'])}**")
            st.html(marked(str(answer["text"]), full, mark=not is_full))
            st.text(f"{tokens} tokens{same}, {float(answer['seconds']):.1f} s")


def marked(text: str, full: str, *, mark: bool = True) -> str:
    """An answer as HTML, escaped; what follows its first difference to ``full`` is marked."""
    text, full = text.strip("\n"), full.strip("\n")
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(text, full, strict=False)))
    shared = text[:same] if mark else text
    if not text.strip():
        return "<pre class='answer'>(nothing)</pre>"
    rest = text[len(shared) :]
    tail = f"<mark>{html.escape(rest)}</mark>" if rest else ""
    return f"<pre class='answer'>{html.escape(shared)}{tail}</pre>"
