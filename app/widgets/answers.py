"""A prompt, and the answers of the original and the pruned models."""

from itertools import takewhile
from textwrap import shorten
from typing import Final

import streamlit as st

from analysis.foreign_text import in_html
from app.charts.evaluations import plan_name
from app.literal import literal
from pruning.records.kept_answers import AnswerRecord

# An underlined tint with enough contrast in the light and the dark theme.
_STYLE: Final = """
<style>
pre.answer { white-space: pre-wrap; overflow-wrap: anywhere; margin: 0;
  font-family: "Source Code Pro", monospace; font-size: 0.9rem; }
pre.answer mark { background: rgba(230, 159, 0, 0.25); color: inherit;
  border-bottom: 2px solid #d55e00; }
</style>
"""


def answers_part(pair: AnswerRecord, name: str = "", *, most: int | None = None) -> None:
    """The prompt, and the answers of the original and the pruned model, one below the other.

    `name` is the plan's where its own is said already; answers are cut to `most` characters.
    """
    st.text(pair.prompt)
    st.html(_STYLE)
    full = _cut(pair.answers[0].text, most)
    with st.container(gap="xxsmall"):
        st.markdown("**Original model**")
        st.html(marked(full, full, mark=False))
    pruned_answer(pair, name, most=most)


def pruned_answer(pair: AnswerRecord, name: str = "", *, most: int | None = None) -> None:
    """The answer of the pruned model, and how far it is the original's."""
    full, answer = pair.answers
    verdict = "differs from the first word"
    if answer.agreed:
        verdict = f"differs after {answer.agreed} tokens"
    if answer.text.strip() == full.text.strip():
        verdict = "same answer, word for word"
    with st.container(gap="xxsmall"):
        st.markdown(f"**{literal(name or plan_name(pair))}**: {verdict}")
        st.html(marked(_cut(answer.text, most), _cut(full.text, most)))


def _cut(text: str, most: int | None) -> str:
    """The text, or its beginning and its end."""
    if most is None or len(text) <= most:
        return text
    half = most // 2
    head = shorten(text, half, placeholder="") or text[:half]
    tail = shorten(text[::-1], half, placeholder="")[::-1] or text[-half:]
    return f"{head} ... {tail}"


def marked(text: str, full: str, *, mark: bool = True) -> str:
    """An answer as escaped HTML; text after its first difference from ``full`` is marked."""
    text, full = text.strip("\n"), full.strip("\n")
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(text, full, strict=False)))
    shared = text[:same] if mark else text
    if not text.strip():
        return "<pre class='answer'>(nothing)</pre>"
    rest = text[len(shared) :]
    tail = f"<mark>{in_html(rest)}</mark>" if rest else ""
    return f"<pre class='answer'>{in_html(shared)}{tail}</pre>"
