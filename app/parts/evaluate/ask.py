"""The Evaluate page, ask both models: a prompt, and the answers of full and pruned side by side."""

import html
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any, Final

import streamlit as st

from analysis.model import DEMO_MODEL
from app.frame.controls import one_of
from app.jobs.model import Job, JobState
from app.literal import literal
from app.parts.evaluate.candidates import candidate_part, plan_name
from app.session.data import shown_model
from app.session.job_queue import job_store, own_model, queue, shown_request
from app.session.state import View
from pruning.planning.planning import Shown
from pruning.requests.base import validated
from pruning.requests.evaluation import AskRequest

_LENGTHS: Final = (16, 32, 64, 128, 256, 512)
_MOST_LETTERS: Final = 20_000
_DEMO_PROMPT: Final = "Solve for x: 4 * x + 3 = 23."
_TITLE_LETTERS: Final = 60
# A tint that leaves the text its contrast in the light and in the dark theme, and a line below.
_STYLE: Final = """
<style>
pre.answer { white-space: pre-wrap; overflow-wrap: anywhere; margin: 0;
  font-family: "Source Code Pro", monospace; font-size: 0.9rem; }
pre.answer mark { background: rgba(230, 159, 0, 0.25); color: inherit;
  border-bottom: 2px solid #d55e00; }
</style>
"""


def ask_part(view: View) -> None:
    """The question, and below it the newest answers."""
    st.markdown(
        "**Ask both models**: the full and the pruned one continue the same prompt, each time with "
        "the most probable token. Marked is what follows their first difference."
    )
    with st.container(border=True):
        _question(view)
    asked = [job for job in job_store().list(kinds=("ask",)) if is_answer_of(job, view)]
    if not asked:
        st.text("No answers yet: they appear here, and stay when the page is loaded again.")
        return
    with st.container(border=True):
        _answers(asked)


def is_answer_of(job: Job, view: View) -> bool:
    """Whether a job has answers of the model on screen."""
    if job.kind != "ask" or job.state is not JobState.DONE:
        return False
    return job.request.get("model") == str(view.model.checkpoint.path) and bool(
        (job.result or {}).get("answers")
    )


def _question(view: View) -> None:
    shown = candidate_part(view, "ask")
    prompt = st.text_area(
        "Prompt",
        value=_DEMO_PROMPT if view.model.name == DEMO_MODEL else "",
        key=f"ask.prompt.{view.model.name}",
        max_chars=_MOST_LETTERS,
        placeholder="What both models should answer",
    )
    length = st.select_slider("Tokens of an answer, at most", _LENGTHS, value=64, key="ask.tokens")
    if shown is None:
        return
    if not prompt.strip():
        st.text("Write a prompt.")
        return
    request: AskRequest = validated(
        AskRequest,
        {
            "model": own_model(view)["model"],
            "prompt": prompt,
            "plans": (shown.plan.to_dict(),),
            "names": (plan_name(shown),),
            "max_new_tokens": one_of(length, _LENGTHS),
        },
    )
    commands = _commands(view, shown, request)
    if st.button("Ask both", type="primary", icon=":material/forum:", key="ask.send"):
        queue(request, " ".join(prompt.split())[:_TITLE_LETTERS], commands[-1])
    st.code("\n".join(commands), language=None, wrap_lines=True)


def _commands(view: View, shown: Shown, request: AskRequest) -> list[str]:
    command = shown_request(request).command(shown.file or "plan.json")
    return [shown.plan_command(shown_model(view.model)), command]


def _answers(asked: Sequence[Job]) -> None:
    jobs = {job.id: job for job in asked}
    chosen = next(iter(jobs))
    if len(jobs) > 1:
        picked = st.selectbox(
            "Question",
            list(jobs),
            key="ask.question",
            format_func=lambda name: literal(_headline(jobs[name])),
        )
        chosen = one_of(picked, list(jobs))
    job = jobs[chosen]
    st.text(str(job.request["prompt"]))
    answers = (job.result or {})["answers"]
    full = str(answers[0]["text"])
    st.html(_STYLE)
    for number, (answer, place) in enumerate(zip(answers, st.columns(len(answers)), strict=True)):
        with place:
            _answer(answer, full, is_full=number == 0)


def _headline(job: Job) -> str:
    return f"{job.title} ({', '.join(map(str, job.request.get('names', ())))})"


def _answer(answer: Mapping[str, Any], full: str, *, is_full: bool) -> None:
    st.markdown(f"**{'Full model' if is_full else literal(answer['name'])}**")
    st.html(marked(str(answer["text"]), full, mark=not is_full))
    tokens, agreed = int(answer["num_tokens"]), int(answer["agreed"])
    same = "" if is_full else f", the first {agreed} as the full model"
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
