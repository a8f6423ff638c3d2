"""Errors are one line, whatever stands in the names that they tell of."""

import pytest

from analysis.errors import PlanError, UserError
from pruning.evaluate.benchmarks.harness_results import number


@pytest.mark.parametrize("between", ["\n", "\r\n", "\x1b[2J", "\u2028", "\x85", "\ud800", "\t"])
def test_what_cannot_be_printed_becomes_spaces(between):
    said = str(PlanError(f"The layer a{between}b is unknown."))
    assert said.isprintable()
    assert said.startswith("The layer a ")
    assert said.endswith("b is unknown.")


def test_letters_of_all_languages_stay():
    assert (
        str(UserError("\u6a21\u578b 'caf\u00e9' \U0001f600"))
        == "\u6a21\u578b 'caf\u00e9' \U0001f600"
    )


def test_what_is_listed_has_a_line_each():
    assert str(UserError("Two problems:", ["a\nb", "c"])) == "Two problems:\n  a b\n  c"


def test_a_number_too_large_for_a_score_is_none():
    assert number(10**400) is None
    assert number(-(10**400)) is None
    assert number(2**60) == 2.0**60
