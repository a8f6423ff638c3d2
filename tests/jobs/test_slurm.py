"""The SLURM runner, through the real submitit, on a cluster of one machine (see `fake_slurm`)."""

import contextlib
import os
import signal
import sqlite3
import stat

import fake_slurm
import pytest

from analysis.errors import JobError
from app.jobs.model import JobState
from app.jobs.slurm import SlurmRunner, check_slurm, parse_options
from app.jobs.store import JobStore

pytest.importorskip("submitit", reason="the extra `slurm` is not installed")

FAKE_TOKEN = "hf_" + "Qz7" * 12


@pytest.fixture
def store(tmp_path):
    return JobStore(tmp_path / "state" / "jobs.sqlite", shared=True)


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    folder = tmp_path / "cluster"
    fake_slurm.install(folder)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    yield folder
    (folder / "hold").unlink(missing_ok=True)
    for path in (folder / "states").glob("*.pid"):
        end(folder, path.stem, "CANCELLED by 0")


def end(folder, number, state):
    fake_slurm.STATES = folder / "states"
    fake_slurm.end(number, state)


@pytest.fixture
def runner(store, cluster, tasks_on_path):
    from submitit import SlurmJob

    SlurmJob.watcher.clear()
    return SlurmRunner(store, grace_seconds=0.3, silence_seconds=0.5, kinds_module="job_tasks")


def test_a_job_runs_reports_and_ends(runner, store, submit, ended_by_tick):
    job = submit("count", n=3)
    runner.tick()
    runner.tick()  # which hands nothing over twice
    job = ended_by_tick(job)
    assert (job.state, job.result, job.error) == (JobState.DONE, {"counted": 3}, "")
    assert (job.done, job.total, job.unit) == (3, 3, "numbers")
    assert job.batch.isdecimal()
    assert job.rss_peak > 0
    assert f"Job {job.id}: moeprune count" in store.tail(job.id)
    assert stat.S_IMODE(job.log_path.stat().st_mode) == 0o600


def test_a_job_that_waits_in_slurm_is_canceled_there(runner, store, submit, cluster):
    (cluster / "hold").touch()
    job = submit("count", n=1)
    runner.tick()
    waiting = store.get(job.id)
    assert waiting.state is JobState.QUEUED
    store.cancel(job.id)
    runner.tick()
    assert store.get(job.id).state is JobState.CANCELED
    assert (cluster / "canceled").read_text() == f"{waiting.batch}\n"


def test_a_worker_that_ignores_the_cancel_is_stopped_by_slurm(
    store, started, cluster, ended_by_tick
):
    job = started("stubborn")
    store.cancel(job.id)
    job = ended_by_tick(job)
    assert (job.state, job.error) == (JobState.CANCELED, "SLURM stopped the worker.")
    assert job.batch in (cluster / "canceled").read_text()


def test_a_worker_that_slurm_ended_is_lost_with_the_reason(
    runner, store, submit, until, cluster, tmp_path
):
    errors = {
        "OUT_OF_MEMORY": "SLURM killed the worker: out of memory; last memory ",
        "TIMEOUT": "SLURM stopped the worker: its time limit was reached; ",
        "NODE_FAIL": "The node of the worker failed; ",
        "CANCELLED by 1000": "The job was canceled in SLURM; ",
        "BOOT_FAIL": "The worker vanished; SLURM says BOOT_FAIL; ",
    }
    jobs = {}
    for state in errors:
        partial, ready, tidied = (str(tmp_path / f"{state}{end}") for end in (".partial", "", "-"))
        request = {"paths": [partial], "ready": ready, "tidied": tidied}
        jobs[state] = submit("write_partial", partials=[partial], **request).id
    runner.tick()
    until(lambda: all(store.get(job).rss_peak for job in jobs.values()))
    for state, job in jobs.items():
        until((tmp_path / state).exists)
        end(cluster, store.get(job).batch, state)
    until(lambda: runner.tick() or all(store.get(job).is_finished for job in jobs.values()))
    for state, error in errors.items():
        job = store.get(jobs[state])
        assert job.state is JobState.LOST
        assert job.error.startswith(error)
        assert job.error.endswith("iB.")
        # The same request again, as for any other job.
        assert store.retry(job.id).batch == ""
    assert not list(tmp_path.glob("*.partial"))


def test_the_signal_before_the_time_limit_lets_the_task_tidy_up(
    store, started, ended_by_tick, tmp_path
):
    job = started("write_partial")
    os.kill(store.get(job.id).pid, signal.SIGUSR2)
    job = ended_by_tick(job)
    assert job.state is JobState.FAILED
    assert job.error.startswith("The time limit of the SLURM job was near; retry resumes")
    assert (tmp_path / "tidied").exists()


def test_only_named_variables_reach_the_worker(
    runner, store, submit, ended_by_tick, monkeypatch, cluster
):
    monkeypatch.setenv("HF_TOKEN", FAKE_TOKEN)
    monkeypatch.setenv("TEST_SECRET", "x")
    job = submit("leak")
    runner.tick()
    job = ended_by_tick(job)
    assert job.result["token_length"] == len(FAKE_TOKEN)
    assert job.result["secret_passed"] is False
    for path in store.path.parent.rglob("*"):
        assert not path.is_file() or FAKE_TOKEN.encode() not in path.read_bytes(), path.name


def test_what_is_handed_over_is_private_and_does_not_stay(
    runner, submit, until, ended_by_tick, cluster
):
    (cluster / "hold").touch()
    job = submit("count", n=1)
    runner.tick()
    assert stat.S_IMODE(runner.folder.stat().st_mode) == 0o700
    assert list(runner.folder.iterdir())
    (cluster / "hold").unlink()
    job = ended_by_tick(job)
    # The wrapper around the worker may write its last file after the worker's end.
    until(lambda: (cluster / "states" / job.batch).read_text() != "RUNNING")
    runner.tick()
    assert list(runner.folder.iterdir()) == []


def test_the_options_are_those_of_the_script_and_the_limit_holds(store, submit, cluster):
    (cluster / "hold").touch()
    options = parse_options("partition=gpu,gpus_per_node=2,mem_gb=64,time=240,gres=gpu:a100:1")
    runner = SlurmRunner(store, options, limit=1, kinds_module="job_tasks")
    jobs = [submit("count", n=1) for _ in range(2)]
    runner.tick()
    assert [bool(store.get(job.id).batch) for job in jobs] == [True, False]
    (script,) = runner.folder.glob("*_submission.sh")
    for line in ("--partition=gpu", "--gpus-per-node=2", "--mem=64GB", "--time=240"):
        assert f"#SBATCH {line}\n" in script.read_text()


def test_a_refusal_of_slurm_fails_the_job(runner, store, submit, cluster):
    (cluster / "sbatch").write_text("#!/bin/sh\necho 'sbatch: error: invalid account' >&2\nexit 1")
    job = submit("count", n=1)
    runner.tick()
    job = store.get(job.id)
    assert job.state is JobState.FAILED
    assert job.error.startswith("SLURM did not take the job: ")
    assert "invalid account" in job.error


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("partitions=gpu", r"Unknown SLURM option 'partitions'\. Did you mean 'partition'\?"),
        ("time=soon", "takes a whole number, as time=4; got 'soon'"),
        ("time=" + 5000 * "9", "takes a whole number, as time=4; got '999"),
        *(
            (f"partition{value}", "takes a plain word")
            for value in ("=$(reboot)", "=gpu\n#SBATCH --uid=0", "")
        ),
    ],
)
def test_options_that_are_none_are_refused(text, message):
    with pytest.raises(JobError, match=message):
        parse_options(text)


def test_a_machine_without_slurm_is_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JobError, match="needs sbatch on the PATH"):
        check_slurm()


def test_progress_is_seen_while_it_runs(runner, store, submit, until, ended_by_tick):
    job = submit("count", n=400, pause=0.05)
    runner.tick()
    until(lambda: 0 < store.get(job.id).done < 400)
    running = store.get(job.id)
    assert (running.state, running.phase) == (JobState.RUNNING, "counting")
    store.cancel(job.id)
    assert ended_by_tick(job).state is JobState.CANCELED


def test_a_table_of_several_machines_has_no_write_ahead_log(store, tmp_path):
    own = JobStore(tmp_path / "own" / "jobs.sqlite")
    for path, mode in ((store.path, "delete"), (own.path, "wal")):
        with contextlib.closing(sqlite3.connect(path)) as connection:
            assert connection.execute("PRAGMA journal_mode").fetchone() == (mode,)
