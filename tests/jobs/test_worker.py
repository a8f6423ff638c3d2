"""The worker: what it records, how it ends, and what no log shows."""

import io
import os
import signal
import stat
import subprocess
import sys
import time
from contextlib import suppress

import psutil
import pytest

from analysis.pace import Pace
from analysis.progress import Progress, Whole
from analysis.stats.rates import known_rates
from app.jobs.model import JobState
from app.jobs.redact import RedactedStream, holds_token, redact
from app.jobs.worker import Reporter

FAKE_TOKEN = "hf_" + "Qz7" * 12


def test_a_finished_task_leaves_result_progress_and_log(runner, store, submit, ended):
    job = submit("count", n=3)
    runner.tick()
    job = ended(job)
    assert (job.state, job.result, job.error) == (JobState.DONE, {"counted": 3}, "")
    assert (job.phase, job.done, job.total, job.unit) == ("counting", 3, 3, "numbers")
    assert job.created_at <= job.started_at <= job.heartbeat_at <= job.finished_at
    log = store.tail(job.id)
    assert f"Job {job.id}: moeprune count" in log
    assert "counting: at 3" in log
    assert stat.S_IMODE(job.log_path.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("kind", "error", "has_trace"),
    [
        ("boom", "RuntimeError: boom in two lines", True),
        ("refuse", "The corpus is empty; choose another one.", False),
        ("exhaust", "Out of memory: the worker had reached ", True),
        ("opaque", "TypeError: Object of type PosixPath is not JSON serializable", True),
        ("cuont", "Unknown kind of job 'cuont'. Did you mean 'count'?", False),
    ],
)
def test_a_task_that_raises_fails_with_one_line(
    runner, store, submit, ended, kind, error, has_trace
):
    job = submit(kind)
    runner.tick()
    job = ended(job)
    assert job.state is JobState.FAILED
    assert job.error.startswith(error)
    assert "\n" not in job.error
    assert ("Traceback" in store.tail(job.id)) is has_trace


@pytest.mark.parametrize("end", [None, RuntimeError])
def test_the_rates_of_a_job_are_kept_however_it_ends(store, submit, monkeypatch, tmp_path, end):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    total, now = {"multiply": 10.0}, [0.0]
    reporter = Reporter(store, submit("count", n=1))
    reporter._pace = Pace(lambda: now[0])
    with suppress(RuntimeError), reporter:
        reporter.report(Progress("calibrating", 0, 2, whole=Whole(total)))
        now[0] = 30.0
        reporter.report(Progress("calibrating", 1, 2, whole=Whole(total, {"multiply": 5.0})))
        if end:
            raise end
    reporter.keep_rates()
    assert known_rates() == {"multiply": pytest.approx(6.0)}


def test_the_peak_of_memory_is_recorded(runner, submit, ended):
    job = submit("allocate", size=150_000_000)
    runner.tick()
    assert 150_000_000 < ended(job).rss_peak < 600_000_000


def test_tokens_reach_the_worker_and_nothing_else(runner, store, submit, ended, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", FAKE_TOKEN)
    monkeypatch.setenv("TEST_SECRET", "x")
    jobs = [submit("leak"), submit("leak_error")]
    runner.tick()
    jobs = [ended(job) for job in jobs]
    assert jobs[0].result["token_length"] == len(FAKE_TOKEN)
    assert jobs[0].result["secret_passed"] is False
    assert jobs[1].error == "RuntimeError: 401 for hf_[redacted]"
    for path in store.path.parent.rglob("*"):
        assert not path.is_file() or FAKE_TOKEN.encode() not in path.read_bytes(), path.name
    # Printed, in two parts, without line end, phase, and phase with note.
    assert store.tail(jobs[0].id).count("hf_[redacted]") == 6


def test_cancel_stops_by_signal_and_lets_the_task_tidy_up(store, started, until, ended, tmp_path):
    job = started("write_partial")
    until(lambda: store.get(job.id).done == 1)
    store.cancel(job.id, requested_by="ann")
    # While the table is locked no heartbeat learns of the cancel: only the signal stops the task.
    with store.transaction():
        until((tmp_path / "tidied").exists)
    job = ended(job)
    assert (job.state, job.error) == (JobState.CANCELED, "")
    assert not (tmp_path / "out.partial").exists()


def test_cancel_reaches_the_children_of_a_task(store, started, until, ended, tmp_path):
    job = started("spawn")
    child = int((tmp_path / "ready").read_text())
    store.cancel(job.id)
    assert ended(job).state is JobState.CANCELED
    until(lambda: is_gone(child))


def test_a_silent_task_has_a_heartbeat_and_sees_a_cancel_made_elsewhere(store, started, ended):
    job = started("silent")
    with store.transaction() as jobs:
        jobs.update(job.id, cancel_at=time.time())
    job = ended(job)
    assert job.state is JobState.CANCELED
    assert job.heartbeat_at - job.started_at > 1.5
    assert job.rss_peak > 0


def test_a_failed_job_loses_its_partial_output_and_nothing_else(runner, submit, ended, tmp_path):
    partial, precious = tmp_path / "out.partial", tmp_path / "out"
    link = tmp_path / "link.partial"
    link.symlink_to(precious)
    request = {"paths": [str(partial), str(precious)], "fail": True}
    request |= {"ready": str(tmp_path / "ready"), "tidied": str(tmp_path / "tidied")}
    job = submit("write_partial", partials=[partial, precious, link], **request)
    runner.tick()
    assert ended(job).error == "RuntimeError: asked to fail"
    assert not partial.exists()
    assert not link.is_symlink()
    assert (precious / "shard").read_text() == "bytes"


def test_a_malformed_id_or_module_and_a_job_of_another_are_refused(store, submit):
    job = submit("count", n=1)
    for kinds, job_id, code, said in (
        ("job_tasks", "../../x", 2, "is no job id"),
        ("a b", "0" * 12, 2, "is no module name"),
        ("job_tasks", job.id, 1, "is queued and not held by this worker"),
    ):
        words = ["-m", "app.jobs.worker", "--db", str(store.path), "--kinds", kinds, job_id]
        run = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
        assert run.returncode == code
        assert said in run.stdout + run.stderr
    assert store.get(job.id) == job


def is_gone(pid):
    try:
        os.kill(pid, 0)
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except (ProcessLookupError, psutil.NoSuchProcess):
        return True


def test_the_children_of_a_vanished_worker_are_killed(
    store, started, until, ended_by_tick, tmp_path
):
    job = started("spawn")
    child = int((tmp_path / "ready").read_text())
    os.kill(store.get(job.id).pid, signal.SIGKILL)
    assert not is_gone(child)
    assert ended_by_tick(job).state is JobState.LOST
    until(lambda: is_gone(child))


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


def test_the_modules_load_neither_models_nor_pages():
    script = (
        "import sys, app.jobs.worker\n"
        "print(sorted({'torch', 'transformers', 'streamlit', 'pandas'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"
