"""The corpora and prompts of the shipped records: the one place to change when they do."""

from dataclasses import dataclass
from itertools import islice

from analysis.demo.held_out import fitness_source

CODE, MATH, PROSE = "demo-code", "demo-math", "demo-prose"
# The last one is the newest calibration, whose routing sizes plans that no corpus ranked.
CALIBRATED = (CODE, PROSE, MATH)
BLEND = (CODE, MATH, PROSE)  # in the order that plans record
EVALUATED = (CODE, MATH, PROSE)
PROMPT = "Solve for x: 4 * x + 3 = 23."


@dataclass(frozen=True, slots=True)
class Excerpt:
    """The beginning of a held-out document, with its roles in the words of the chat template."""

    corpus: str
    document: int  # in the order of evaluations
    characters: int

    def read(self) -> str:
        """The text."""
        draw = fitness_source(self.corpus).draw(42)
        document = next(islice(draw, self.document, None))
        turns = [f"<|{turn['role']}|>{turn['content']}" for turn in document.messages or ()]
        text = document.text or "".join(turns) + "<|end|>"
        return text[: self.characters]


EXCERPTS = (Excerpt(CODE, 1, 403), Excerpt(MATH, 5, 999), Excerpt(PROSE, 0, 347))
