"""kill -9 in its short form; `python -m tools.reliability.kills` is the long one."""

import os
from pathlib import Path

import numpy as np
import pytest

from pruning.measurements.block import Block, SampleSet
from pruning.measures.result import SampleSums
from tools.reliability.table_rows import faults, rows

ROOT = Path(__file__).parents[2]
# Each kind of write: sums, lines of the table, states of streamed layers, a search, curves.
# tests/pruning/test_export_kill.py kills exports.
COMMANDS = ("calibrate", "evaluate", "evaluate, streamed", "search", "sensitivity")
KILLS = 2
# With it the first attempt at each command is killed twice or three times, early and late.
SEED = 1156


def line(plan, *values):
    counts = np.ones(len(values), dtype=np.int64)
    sums = {"nll": SampleSums(np.array(values), counts)}
    where = SampleSet("text", "5e7", "float32", 42)
    ids = tuple(map(str, range(len(values))))
    return Block("00ab", plan, (1,), where, len(values), ids, sums, {}).to_line()


def test_what_kills_must_not_do_to_the_table_is_seen():
    one, two, other = line("one", 1.0, 2.0), line("two", 3.0, 4.0), line("two", 3.0, 4.5)
    wanted = rows({"a": one + two})
    assert len(wanted) == 4
    begun, equal = {"a": one}, {"a": one, "b": one + two}
    assert [faults(begun, after, wanted) for after in (begun, {"a": one + two}, equal)] == [[]] * 3
    for after, words in (
        ({"a": two}, "lines of a are lost"),
        ({"b": one}, "lines of a are lost"),
        ({"a": one + one}, "is twice in a"),
        ({"a": one + two, "b": other}, "has other bits in b"),
        ({"a": one + other}, "is none of an uninterrupted run"),
        ({"a": one + line("three", 1.0)}, "is none of an uninterrupted run"),
        ({"a": one + two[:-30] + b"\n"}, "sha256 differs"),
    ):
        (fault,) = faults(begun, after, wanted)
        assert words in fault


@pytest.mark.slow
def test_killed_commands_lose_nothing(forks, tmp_path):
    words = ["-m", "tools.reliability.kills", "--kills", str(KILLS)]
    words += ["--seed", str(SEED)]
    words += [word for name in COMMANDS for word in ("--command", name)]
    paths = os.pathsep.join(map(str, (ROOT, ROOT / "tests")))
    ended = forks.run(*words, folder=tmp_path, environment={**os.environ, "PYTHONPATH": paths})
    assert ended.code == 0, ended.out + ended.err
    kills = int(ended.out.splitlines()[-1].split()[0])
    assert kills >= KILLS * len(COMMANDS)
