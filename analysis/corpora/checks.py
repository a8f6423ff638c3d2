"""Checks: rules by which what a model wrote is right or wrong, given the answer of its document."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from analysis.corpora.spec import CheckName
from analysis.demo.interpreter import is_asked, is_right

_MINUS = "\u2212"  # as typeset text has it
# A sign counts where no number or word ends before it: 8-3 ends in 3, x=-3 in -3.
_NUMBER = re.compile(
    rf"(?P<sign>(?<![\w.)\]])[-+{_MINUS}])?\$?(?<!\w)"
    r"(?P<value>\d{1,3}(?:,\d{3})+(?!\d)(?:\.\d+)?|(?<!/)\d+/\d+(?![/\d])"
    r"|(?:\d+(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d{1,3}(?!\w))?)"
)
_MOST_DIGITS = 1000  # of a number; Python's own limit is 4,300


@dataclass(frozen=True, slots=True)
class Check:
    """A rule that tells right answers from wrong ones."""

    name: CheckName  # behind a corpus, as ,check=NAME
    about: str  # when an answer is right, in one line
    right: Callable[[str, str], bool]  # (what the model wrote, the document's answer)
    fits: Callable[[str], bool]  # whether a document's answer can be checked so
    needs: str  # what a document's answer must have


def _plain(text: str) -> str:
    """The text without space at its ends, and with single spaces for every run of whitespace."""
    return " ".join(text.split())


def last_number(text: str) -> Fraction | None:
    """The last number in a text; None without one.

    A point is decimal, commas part thousands, 3/4 is a fraction, and 1e-05 is 0.00001.
    """
    found = None
    for found in _NUMBER.finditer(text):  # noqa: B007  (the last one)
        pass
    if found is None or len(found["value"]) > _MOST_DIGITS:
        return None
    try:
        value = Fraction(found["value"].replace(",", ""))
    except ZeroDivisionError:
        return None
    return -value if found["sign"] in ("-", _MINUS) else value


def _exact(written: str, answer: str) -> bool:
    return _plain(written) == _plain(answer)


def _number(written: str, answer: str) -> bool:
    number = last_number(written)
    return number is not None and number == last_number(answer)


def _contains(written: str, answer: str) -> bool:
    words = re.escape(_plain(answer).casefold())
    return re.search(rf"(?<!\w){words}(?!\w)", _plain(written).casefold()) is not None


def _has_words(answer: str) -> bool:
    return bool(answer.strip())


CHECKS: Mapping[str, Check] = {
    check.name: check
    for check in (
        Check(
            "exact",
            "it is the answer, runs of whitespace counting as one space",
            _exact,
            _has_words,
            "text",
        ),
        Check(
            "number",
            "its last number equals the last one of the answer",
            _number,
            lambda answer: last_number(answer) is not None,
            "a number",
        ),
        Check(
            "contains",
            "it has the answer in it as whole words, in upper or lower case",
            _contains,
            _has_words,
            "text",
        ),
        Check(
            "function",
            "it is the body of a function and returns what each case expects",
            is_right,
            is_asked,
            "JSON with the function's head and cases",
        ),
    )
}
