"""The demo's corpora by name: what they are, and how answers to them are checked."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

TRAINING_DOCUMENTS: Final = 50_000  # of each corpus, numbered from 0
HELD_OUT_FROM: Final = 1_000_000  # the number of the first document that may be held out


@dataclass(frozen=True, slots=True)
class DemoCorpus:
    """A corpus of the demo; `texts` writes its documents."""

    name: str
    about: str  # what its documents are, in the plural
    check: str  # of its answers, see `analysis.corpora.checks`
    answer_tokens: int  # more than any right answer has
    stop: str | None  # the text at which an answer ends, besides the model's own end
    is_usual: bool = True  # a corpus to calibrate on; the other one tests what no calibration read


DEMO_CORPORA: Mapping[str, DemoCorpus] = {
    corpus.name: corpus
    for corpus in (
        DemoCorpus("demo-code", "Python functions", "function", 96, "\n\n\n"),
        DemoCorpus("demo-stories", "stories with questions", "exact", 24, "\n"),
        DemoCorpus("demo-math", "word problems with worked answers", "number", 48, None),
        DemoCorpus("demo-recipes", "recipes with questions", "exact", 24, "\n", is_usual=False),
    )
}
