"""Fuzzing in its short form; `python -m tools.reliability.fuzz` is the long one."""

import contextlib
import sys

import pytest

from analysis.errors import UserError
from tools.reliability.fuzz import Tally, TooLongError, attempt, bounded, fuzz
from tools.reliability.mutations import bytes_changed
from tools.reliability.reader import Reader
from tools.reliability.readers import READERS, copied, make_inputs

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads its memory from /proc")
INPUTS = 5


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """The examples, to break; every test leaves them as they were."""
    folder = tmp_path_factory.mktemp("fuzz")
    make_inputs(folder / "valid")
    return copied(folder / "valid", folder / "broken")


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_whatever_is_read_ends_in_a_result_or_in_one_line(root, reader):
    tally = Tally()
    fuzz(reader, root, range(1), 0, tally)
    assert tally.results == 1, "the first input is the valid one"
    fuzz(reader, root, range(1, INPUTS), 0, tally)
    assert tally.escapes == []
    assert tally.inputs == tally.results + tally.errors == INPUTS


def harmful(root):
    (root.parent / "elsewhere").write_text("x")


def too_much(root):
    return len(bytearray(2 << 30))


def refused(root):
    raise UserError("two:", ["lines"])


def broken(root):
    raise KeyError("layer")


@pytest.mark.parametrize(
    ("read", "escape"),
    [
        (harmful, "wrote outside of its folder"),
        (too_much, "MemoryError"),
        (refused, "message of several lines"),
        (broken, "KeyError"),
    ],
)
def test_the_harness_sees_what_must_not_happen(tmp_path, read, escape):
    (tmp_path / "inside").mkdir()
    tally = Tally()
    assert not attempt(Reader("one", "file", bytes_changed, read), tmp_path / "inside", b"", tally)
    assert escape in tally.escapes[0]


def test_the_harness_ends_what_takes_too_long(tmp_path, monkeypatch):
    monkeypatch.setattr("tools.reliability.fuzz.SECONDS", 0.05)
    # Also inside of what catches every exception, as around tokenizers.
    with pytest.raises(TooLongError), bounded(tmp_path), contextlib.suppress(Exception):
        while True:
            pass
