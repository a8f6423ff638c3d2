"""Corpora with their weights in a blend, as `NAME:WEIGHT`."""

from __future__ import annotations

import math
from collections.abc import Container
from dataclasses import dataclass, field

from analysis.corpora.spec import parse_corpus
from analysis.errors import CorpusError, StatsError


@dataclass(frozen=True, slots=True)
class CorpusWeight:
    """A corpus and its weight in a blend."""

    corpus: str
    weight: float = 1.0
    text: str = field(default="", compare=False)  # as written, if it has a weight

    @property
    def cache_key(self) -> str:
        """All of it."""
        return repr(self)

    def among(self, known: Container[str]) -> CorpusWeight:
        """Itself, or the corpus of `known` whose name is the whole text."""
        return CorpusWeight(self.text) if self.text in known else self


def parse_corpus_weight(text: str) -> CorpusWeight:
    """`NAME` or `NAME:WEIGHT`; `run:2.jsonl` and `hub:owner/name` have no weight."""
    name, colon, weight = text.rpartition(":")
    if not colon or "/" in weight:
        return CorpusWeight(text)
    try:
        value = float(weight)
    except ValueError as error:
        if names_corpus(text):
            return CorpusWeight(text)
        raise StatsError(
            f"{weight!r} in {text!r} is not a weight; write CORPUS:2 or CORPUS."
        ) from error
    if not 0 < value < math.inf:
        raise StatsError(f"The weight in {text!r} must be greater than 0, and finite.")
    return CorpusWeight(name, value, text)


def corpus_weight_text(name: str, weight: float = 1.0) -> str:
    """Text from which `parse_corpus_weight` reads this name and weight, whatever the name."""
    try:
        needs_weight = weight != 1 or parse_corpus_weight(name).corpus != name
    except StatsError:
        needs_weight = True
    return f"{name}:{weight:g}" if needs_weight else name


def names_corpus(text: str) -> bool:
    """Whether `calibrate` takes this text as a corpus."""
    try:
        parse_corpus(text)
    except CorpusError:
        return False
    return True
