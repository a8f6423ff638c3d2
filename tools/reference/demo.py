"""The reference of the demo's corpora: their checks, and a document of each."""

from pathlib import Path

from analysis.corpora.checks import CHECKS
from analysis.demo.generate.draw import GeneratedText
from analysis.demo.listing import DEMO_CORPORA, DemoCorpus
from analysis.demo.texts import demo_text
from tools.reference.markdown import cell, table

__all__ = ["corpora"]

_DOCUMENT = 0  # that is shown
_BETWEEN_FUNCTIONS = "\n\n\n"


def corpora(_root: Path) -> str:
    """A table of the corpora, and one document of each, shortened."""
    head = ("corpus", "documents", "check", "tokens of an answer, at most", "an answer is right if")
    rows = [_row(corpus) for corpus in DEMO_CORPORA.values()]
    shown = [_example(corpus) for corpus in DEMO_CORPORA.values()]
    return "\n\n".join([table(head, rows), *shown])


def _row(corpus: DemoCorpus) -> tuple[str, ...]:
    check = CHECKS[corpus.check]
    tokens = str(corpus.answer_tokens)
    return f"`{corpus.name}`", cell(corpus.about), f"`{check.name}`", tokens, cell(check.about)


def _example(corpus: DemoCorpus) -> str:
    text = demo_text(corpus.name, _DOCUMENT)
    words = _written(text).strip()
    *before, last = words.split(_BETWEEN_FUNCTIONS)
    shortened = f", without the {len(before)} functions before it" if before else ""
    return f"`{corpus.name}`, document {_DOCUMENT}{shortened}:\n\n```text\n{last}\n```"


def _written(text: GeneratedText) -> str:
    """A document as plain text, or the turns of a conversation with their roles."""
    if text.earlier is None:
        return text.whole
    turns = [*text.earlier, (text.prompt, text.response)]
    return "\n".join(f"user: {asked}\nassistant: {answer}" for asked, answer in turns)
