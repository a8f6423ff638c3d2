"""The demo's corpora: generated functions, word problems, stories and recipes.

Written where the program runs, the same bytes on every machine and Python. Documents are known by
their number: the first are for training and calibration, those from a million on are held out.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from analysis.demo.generate.draw import GeneratedText
from analysis.demo.generate.functions import function_text
from analysis.demo.generate.problems import problem_text
from analysis.demo.generate.recipes import recipe_text
from analysis.demo.generate.stories import story_text

TRAINING_DOCUMENTS: Final = 50_000  # of each corpus, numbered from 0
HELD_OUT_FROM: Final = 1_000_000  # the number of the first document that may be held out


class Generator(Protocol):
    """Writes a document."""

    def __call__(self, number: int, *, held_out: bool) -> GeneratedText:
        """The document of this number; a held-out one shares no problem with the others."""


@dataclass(frozen=True, slots=True)
class DemoCorpus:
    """A corpus of the demo."""

    name: str
    about: str  # what its documents are, in the plural
    check: str  # of its answers, see `analysis.corpora.checks`
    answer_tokens: int  # more than any right answer has
    stop: str | None  # the text at which an answer ends, besides the model's own end
    generator: Generator
    is_usual: bool = True  # a corpus to calibrate on; the other one tests what no calibration read

    def text(self, number: int) -> GeneratedText:
        """The document of this number."""
        return self.generator(number, held_out=number >= HELD_OUT_FROM)


TEXTS: Mapping[str, DemoCorpus] = {
    corpus.name: corpus
    for corpus in (
        DemoCorpus("demo-code", "Python functions", "function", 96, "\n\n\n", function_text),
        DemoCorpus("demo-stories", "stories with questions", "exact", 24, "\n", story_text),
        DemoCorpus(
            "demo-math", "word problems with worked answers", "number", 48, None, problem_text
        ),
        DemoCorpus(
            "demo-recipes", "recipes with questions", "exact", 24, "\n", recipe_text, is_usual=False
        ),
    )
}
