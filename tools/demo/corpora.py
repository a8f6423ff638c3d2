"""The corpora and prompts of the shipped records: the one place to change when they do."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from analysis.corpora.sources import fitness_source

CODE, MATH, STORIES = "demo-code", "demo-math", "demo-stories"
# The last one is the newest calibration, whose routing sizes plans that no corpus ranked.
CALIBRATED = (CODE, STORIES, MATH)
BLEND = (CODE, MATH, STORIES)  # in the order that plans record
EVALUATED = (CODE, MATH, STORIES, "demo-recipes")
PROMPT = "Solve for x: 4 * x + 3 = 23."


@dataclass(frozen=True, slots=True)
class Excerpt:
    """A held-out document, with its roles in the words of the chat template."""

    corpus: str
    document: int  # in the order of evaluations

    def read(self) -> str:
        """The text."""
        draw = fitness_source(self.corpus).draw(42)
        document = next(islice(draw, self.document, None))
        return document.text or "".join(map(_formatted, document.messages or ()))


def _formatted(turn: Mapping[str, Any]) -> str:
    end = "<|end|>" if turn["role"] == "assistant" else ""
    return f"<|{turn['role']}|>{turn['content']}{end}"


EXCERPTS = (Excerpt(CODE, 1), Excerpt(MATH, 5), Excerpt(STORIES, 0))
