"""demo and app: the server that they start; and Ctrl-C, which keeps the work."""

import contextlib
import os
import signal
import socket

import pandas as pd
import psutil
import pytest
from servers import an_unused_port, served

from analysis.drain import drain
from analysis.stats.reading import load_expert_stats
from analysis.stats.store import StatsStore
from app.console import follow
from builders import tiny_checkpoint
from builders.tokens import random_ids
from pruning.requests.calibration import CalibrateRequest
from pruning.tasks.calibration import calibrate_run


@pytest.fixture
def start(here, tmp_path):
    """Start a server without a display, below which nothing of the user's is touched."""
    environment = {key: value for key, value in os.environ.items() if key != "DISPLAY"}

    def _start(*words):
        return served(words, log=tmp_path / "server.log", environment=environment, cwd=here)

    return _start


@pytest.fixture
def first_port_taken():
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Somebody else's server may hold it, which serves as well.
        with contextlib.suppress(OSError):
            taken.bind(("127.0.0.1", 8501))
            taken.listen()
        yield


def test_app_takes_its_folders_and_port_from_options(start, models, stats, here):
    port = an_unused_port()
    folders = ("--models-root", models, "--stats-dir", stats, "--export-root", "out")
    with start("app", "--port", port, *folders) as server:
        assert server.port == port
        environment = psutil.Process(server.process.pid).environ()
        assert environment["HOME"] == os.environ["HOME"]
    # Nothing is made before it is needed.
    assert list(here.iterdir()) == []


def test_the_demo_takes_the_next_free_port(start, first_port_taken):
    # What it answers to strangers, tests/app/test_security.py has.
    with start("demo") as server:
        assert f"MoE Prune Studio: {server.url}\n" in server.log.read_text()
        assert 8502 <= server.port <= 8600


@pytest.fixture
def request_in(tmp_path):
    tiny_checkpoint(tmp_path / "model", "olmoe")
    corpus = random_ids(tmp_path / "rows.jsonl", (12, 16))

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
        follow(interrupted(calibrate_run(request_in("kept")), after=5))
    assert stopped.value.code == 130
    assert "run the same command to resume" in capsys.readouterr().err
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
