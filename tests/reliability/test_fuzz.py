"""Fuzzing in its short form; `python -m tools.reliability.fuzz` is the long one."""

import sys

import pytest

from tools.reliability.fuzz import Tally, fuzz
from tools.reliability.readers import READERS, copied, make_inputs

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads its memory from /proc")
INPUTS = 8


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
