"""Redaction of tokens in text and in streams."""

import io

import pytest

from app.jobs.redact import RedactedStream, holds_token, redact

TOKEN = "hf_" + "Zk9" * 10


def test_tokens_are_blotted_out_and_other_names_are_not():
    assert redact(f"a {TOKEN}, b") == "a hf_[redacted], b"
    assert redact("hf_transfer hf_hub_download") == "hf_transfer hf_hub_download"
    assert holds_token(TOKEN)
    assert not holds_token("hf_" + "a" * 19)


@pytest.mark.parametrize("cut", [1, 2, 3, 10, len(TOKEN) - 1])
def test_a_token_in_two_writes_is_blotted_out(cut):
    target = io.StringIO()
    stream = RedactedStream(target)
    stream.write(TOKEN[:cut])
    stream.flush()
    stream.write(f"{TOKEN[cut:]}\n")
    assert target.getvalue() == "hf_[redacted]\n"


def test_the_last_line_comes_out_on_close():
    target = io.StringIO()
    stream = RedactedStream(target)
    stream.write(f"one\ntwo {TOKEN}")
    assert target.getvalue() == "one\n"
    stream.close()
    assert target.getvalue() == "one\ntwo hf_[redacted]"


def test_a_line_without_end_is_not_kept_for_ever():
    target = io.StringIO()
    stream = RedactedStream(target)
    stream.write("x" * 70_000)
    assert len(target.getvalue()) == 70_000


@pytest.mark.parametrize("cut", [1, 2, 3, 10, 23, len(TOKEN) - 1])
def test_a_token_between_two_pieces_of_a_long_line_is_blotted_out(cut):
    target = io.StringIO()
    stream = RedactedStream(target)
    stream.write("-" * 70_000 + TOKEN[:cut])
    assert target.getvalue() == "-" * 70_000
    stream.write(f"{TOKEN[cut:]}\n")
    assert target.getvalue() == "-" * 70_000 + "hf_[redacted]\n"
