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


LONG = "-" * 70_000


@pytest.mark.parametrize(
    ("writes", "passed_on", "in_all"),
    [
        *(
            ((start + TOKEN[:cut], f"{TOKEN[cut:]}\n"), start, f"{start}hf_[redacted]\n")
            for start in ("", LONG)
            for cut in (1, 2, 3, 10, 23, len(TOKEN) - 1)
        ),
        ((f"one\ntwo {TOKEN}",), "one\n", "one\ntwo hf_[redacted]"),
        ((LONG,), LONG, LONG),
    ],
)
def test_a_stream_passes_on_whole_lines_and_no_token(writes, passed_on, in_all):
    """A line without an end is not kept for ever, and the last one comes out on close."""
    target = io.StringIO()
    stream = RedactedStream(target)
    stream.write(writes[0])
    stream.flush()
    assert target.getvalue() == passed_on
    for text in writes[1:]:
        stream.write(text)
        assert target.getvalue() == in_all
    stream.close()
    assert target.getvalue() == in_all
