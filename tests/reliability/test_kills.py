"""kill -9 in its short form; `python -m tools.reliability.kills` is the long one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMMANDS = ("calibrate", "calibrate, streamed", "evaluate", "search", "sensitivity", "export")
KILLS = 2


@pytest.mark.slow
def test_killed_commands_lose_nothing(tmp_path):
    words = [sys.executable, "-m", "tools.reliability.kills", "--kills", str(KILLS)]
    words += [word for name in COMMANDS for word in ("--command", name)]
    paths = os.pathsep.join(map(str, (ROOT, ROOT / "tests")))
    done = subprocess.run(
        words,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    kills = int(done.stdout.splitlines()[-1].split()[0])
    assert kills >= KILLS * len(COMMANDS)
