"""The texts of the demo's corpora: generated functions, word problems, stories and recipes.

Written where the program runs, the same bytes on every machine and Python. Documents are known by
their number: the first are for training and calibration, those from a million on are held out.
"""

from collections.abc import Mapping
from typing import Protocol

from analysis.demo.generate.draw import GeneratedText
from analysis.demo.generate.functions import function_text
from analysis.demo.generate.problems import problem_text
from analysis.demo.generate.recipes import recipe_text
from analysis.demo.generate.stories import story_text
from analysis.demo.listing import HELD_OUT_FROM


class Generator(Protocol):
    """Writes a document."""

    def __call__(self, number: int, *, held_out: bool) -> GeneratedText:
        """The document of this number; a held-out one shares no problem with the others."""


GENERATORS: Mapping[str, Generator] = {
    "demo-code": function_text,
    "demo-stories": story_text,
    "demo-math": problem_text,
    "demo-recipes": recipe_text,
}


def demo_text(corpus: str, number: int) -> GeneratedText:
    """The document of a demo corpus with this number."""
    return GENERATORS[corpus](number, held_out=number >= HELD_OUT_FROM)
