"""Ctrl-C: the work so far is kept, and the same command goes on with the same numbers."""

import json
import signal

import numpy as np
import pandas as pd
import pytest

from analysis.drain import drain
from analysis.stats.store import StatsStore, load_expert_stats
from app.console import follow
from builders import tiny_checkpoint
from pruning.requests.calibration import CalibrateRequest
from pruning.tasks.calibration import calibrate_run


@pytest.fixture
def request_in(tmp_path):
    tiny_checkpoint(tmp_path / "model", "olmoe")
    rows = np.random.default_rng(0).integers(3, 96, (12, 16)).tolist()
    corpus = tmp_path / "rows.jsonl"
    corpus.write_text("".join(json.dumps({"input_ids": row}) + "\n" for row in rows))

    def make(stats_dir):
        return CalibrateRequest(
            model=str(tmp_path / "model"),
            corpus=str(corpus),
            tokens=192,
            seq_len=16,
            batch_size=2,
            stats_dir=tmp_path / stats_dir,
        )

    return make


def interrupted(task, after):
    """The task's steps, with a Ctrl-C during one of them."""
    try:
        for number, step in enumerate(task):
            if number == after:
                signal.raise_signal(signal.SIGINT)
            yield step
    finally:
        task.close()


def test_ctrl_c_keeps_the_work_and_the_same_command_goes_on(request_in, tmp_path, capsys):
    with pytest.raises(SystemExit) as stopped:
        follow(interrupted(calibrate_run(request_in("kept")), after=4))
    assert stopped.value.code == 130
    assert "the same command goes on" in capsys.readouterr().err
    assert StatsStore(tmp_path / "kept").runs() == []
    (state,) = (tmp_path / "kept").glob("*.partial/state.safetensors")
    assert state.stat().st_size > 0

    notes = []
    task = calibrate_run(request_in("kept"))
    run = drain(task, lambda step: notes.append(step.note))
    whole = follow(calibrate_run(request_in("whole")))
    pd.testing.assert_frame_equal(
        load_expert_stats(run).table, load_expert_stats(whole).table, check_exact=True
    )
    assert any("resumed after" in note for note in notes)


def test_the_previous_handler_is_back_afterwards(request_in):
    before = signal.getsignal(signal.SIGINT)
    follow(calibrate_run(request_in("kept")))
    assert signal.getsignal(signal.SIGINT) is before
