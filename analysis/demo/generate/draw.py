"""Draws that are the same on every Python and machine, and what a generated text is."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeVar

_T = TypeVar("_T")


class Draw:
    """Draws from `Random.random()`, the only method whose sequence Python guarantees."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)  # noqa: S311  (text, not secrets)

    def integer(self, low: int, high: int) -> int:
        """A whole number from `low` to `high`, both included."""
        return low + int(self._random.random() * (high - low + 1))

    def pick(self, options: Sequence[_T]) -> _T:
        """One of the options."""
        return options[self.integer(0, len(options) - 1)]

    def some(self, options: Sequence[_T], count: int) -> list[_T]:
        """So many different options, in random order."""
        rest = list(options)
        return [rest.pop(self.integer(0, len(rest) - 1)) for _ in range(count)]


@dataclass(frozen=True, slots=True)
class GeneratedText:
    """One document, whose last part is what a model is asked to write."""

    name: str
    prompt: str  # ends where a token ends, so never in white space
    response: str
    answer: str  # what the corpus' check compares with what a model wrote
    earlier: tuple[tuple[str, str], ...] | None = None  # turns of a conversation; None: plain text

    @property
    def whole(self) -> str:
        """All words of the document, without any format."""
        return "".join(map("".join, (*(self.earlier or ()), (self.prompt, self.response))))
