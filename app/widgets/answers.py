"""A prompt, and the answers of the original and the pruned models."""

from itertools import takewhile
from typing import Final

import streamlit as st

from analysis.foreign_text import in_html
from app.charts.evaluations import plan_name
from app.literal import literal
from pruning.evaluate.record import AnswerRecord

# An underlined tint with enough contrast in the light and the dark theme.
_STYLE: Final = """
<style>
pre.answer { white-space: pre-wrap; overflow-wrap: anywhere; margin: 0;
  font-family: "Source Code Pro", monospace; font-size: 0.9rem; }
pre.answer mark { background: rgba(230, 159, 0, 0.25); color: inherit;
  border-bottom: 2px solid #d55e00; }
</style>
"""


def answers_part(*pairs: AnswerRecord) -> None:
    """The prompt, and the answers of the original and the pruned models, one below the other."""
    first = pairs[0]
    st.text(first.prompt)
    st.html(_STYLE)
    heads = ["Original model", *(literal(plan_name(pair)) for pair in pairs)]
    answers = [first.answers[0], *(pair.answers[1] for pair in pairs)]
    full = first.answers[0].text
    for head, answer in zip(heads, answers, strict=True):
        is_full = answer is first.answers[0]
        same = ""
        if not is_full:
            is_same = answer.text.strip() == full.strip()
            same = (
                ": same answer, word for word"
                if is_same
                else f": differs after {answer.agreed} tokens"
            )
        with st.container(gap="xxsmall"):
            st.markdown(f"**{head}**{same}")
            st.html(marked(answer.text, full, mark=not is_full))


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
