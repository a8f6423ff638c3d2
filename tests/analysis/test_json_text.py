"""JSON that somebody else may have written."""

import pytest

from analysis.json_text import parse_json, parse_json_once


def test_what_is_nested_too_deeply_is_refused():
    with pytest.raises(ValueError, match="nested too deeply"):
        parse_json("[" * 200_000 + "]" * 200_000)


@pytest.mark.parametrize("text", [b"\xff{}", "{", "", '{"a": 1} x', "9" * 5000])
def test_what_is_no_json_is_refused(text):
    with pytest.raises(ValueError, match=r".+"):
        parse_json(text)


def test_a_name_that_is_there_twice():
    assert parse_json('{"a": 1, "a": 2}') == {"a": 2}
    with pytest.raises(ValueError, match="it holds a twice"):
        parse_json_once('{"b": {"a": 1, "a": 2}}')
