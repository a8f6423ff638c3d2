"""Calibrations that write into one cache at the same time."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from analysis.stats.store import StatsStore
from builders import VOCAB, tiny_checkpoint

ROOT = Path(__file__).parent.parent.parent


def start(model, corpus, stats):
    words = ["calibrate", model, "--corpus", corpus, "--tokens", 4000, "--seq-len", 16]
    words += ["--batch-size", 1, "--device", "cpu", "--stats-dir", stats]
    return subprocess.Popen(
        [sys.executable, "-m", "app.cli", *map(str, words)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


@pytest.mark.slow
def test_two_runs_at_once_do_not_harm_each_other(tmp_path):
    tiny_checkpoint(tmp_path / "model", "olmoe")
    for seed, name in enumerate(("red", "blue")):
        rows = np.random.default_rng(seed).integers(3, VOCAB, (250, 16)).tolist()
        lines = "".join(json.dumps({"input_ids": row}) + "\n" for row in rows)
        (tmp_path / f"{name}.jsonl").write_text(lines)
    corpora = [tmp_path / f"{name}.jsonl" for name in ("red", "red", "blue")]
    children = [start(tmp_path / "model", corpus, tmp_path / "stats") for corpus in corpora]
    ended = [(child.communicate(timeout=120), child.returncode) for child in children]
    # Of two that make the same run one may be told so; the other one makes it.
    for (_, complaints), code in ended:
        assert code == 0 or "is being calibrated by another process" in complaints, complaints
    assert 0 in (ended[0][1], ended[1][1])
    assert ended[2][1] == 0
    store = StatsStore(tmp_path / "stats")
    runs = store.runs()
    assert [run.manifest.corpus for run in runs] == ["blue.jsonl", "red.jsonl"]
    for run in runs:
        store.verify(run)
        assert run.manifest.num_tokens == 4000
    assert sorted(store.target.iterdir()) == sorted(run.path for run in runs)
