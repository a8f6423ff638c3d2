"""kill -9 at any moment of an export: nothing passes for finished, and the next one succeeds."""

import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from exports import files_of

from analysis.drain import drain
from pruning.surgery.manifest import MANIFEST_NAME
from pruning.surgery.verify import verify_export

SCRIPT = Path(__file__).with_name("kills.py")


def state_of(out):
    """How far a killed export came, by what lies there."""
    partial = out.with_name("out.partial")
    if out.exists():
        return "finished"
    if not partial.exists():
        return "nothing"
    if (partial / MANIFEST_NAME).exists():
        return "manifest"
    return "files" if (partial / "config.json").exists() else "shards"


@pytest.fixture
def exporter(checkpoint, tmp_path):
    """`exporter(n)`: an export to `to/out`, killed at its n-th call of the system.

    It returns the number of calls, and whether it was killed.
    """
    (tmp_path / "to").mkdir()
    paths = (str(checkpoint("olmoe").path), str(tmp_path / "to" / "out"))
    command = [sys.executable, "-c", SCRIPT.read_text(), *paths]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:

        def export(last):
            process.stdin.write(f"{last}\n")
            process.stdin.flush()
            calls, ended_by = map(int, process.stdout.readline().split())
            assert ended_by in (0, signal.SIGKILL)
            return calls, bool(ended_by)

        yield export
        process.stdin.close()


@pytest.mark.parametrize("count", [8, pytest.param(50, marks=pytest.mark.slow)])
def test_a_killed_export_never_passes_for_finished(exporter, tmp_path, count):
    out = tmp_path / "to" / "out"
    calls, _ = exporter(0)
    wanted = files_of(out)
    assert drain(verify_export(out, level="bytes")).ok
    # One moment in each part of the calls, so that every phase is met.
    shares = (np.arange(count) + np.random.default_rng(4).random(count)) / count
    moments = (1 + shares * calls).astype(int).tolist()
    states: Counter[str] = Counter()
    for moment in moments:
        shutil.rmtree(out, ignore_errors=True)
        _, was_killed = exporter(moment)
        state = state_of(out)
        states[state] += 1
        assert was_killed or state == "finished"
        if state == "finished":
            assert files_of(out) == wanted
        else:
            assert all(".partial" in path.name for path in out.parent.iterdir())
            unfinished = out.with_name("out.partial")
            assert not unfinished.exists() or not drain(verify_export(unfinished)).ok
            exporter(0)  # over whatever lies there
        assert files_of(out) == wanted
        beside = {path.name for path in out.parent.iterdir()} - {"out"}
        assert beside <= {"out.partial.lock"}  # of one that was killed at its very end
    assert set(states) >= {"nothing", "shards", "files"}, states
