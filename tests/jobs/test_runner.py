"""The runner: who starts, what becomes of dead workers, and races, on real processes."""

import dataclasses
import os
import signal
import socket
import subprocess
import sys
import time

import psutil
import pytest

from app.jobs.model import JobState
from app.jobs.process import start_time


def run_python(script, *arguments):
    """A process of its own that runs `script`, as a page or a command line would."""
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE)


PRELUDE = """
import os, sys
from pathlib import Path
from app.jobs.runner import LocalRunner
from app.jobs.store import JobStore
store = JobStore(Path(sys.argv[1]))
runner = LocalRunner(store, kinds_module="job_tasks")
"""


def test_jobs_run_one_after_the_other_without_a_server(runner, store, submit, ended):
    jobs = [submit("count", n=2, pause=0.05) for _ in range(3)]
    runner.tick()
    runner.tick()
    states = [store.get(job.id).state for job in jobs]
    assert states == [JobState.RUNNING, JobState.QUEUED, JobState.QUEUED]
    first, second, third = (ended(job) for job in jobs)
    assert {first.state, second.state, third.state} == {JobState.DONE}
    assert first.finished_at <= second.started_at
    assert second.finished_at <= third.started_at


def test_a_higher_limit_starts_more_and_outlives_the_first(runner, store, submit, ended):
    jobs = [submit("count", n=2, pause=0.4) for _ in range(4)]
    dataclasses.replace(runner, limit=2).tick()
    states = [store.get(job.id).state for job in jobs]
    assert states == [JobState.RUNNING] * 2 + [JobState.QUEUED] * 2
    last = [ended(job) for job in jobs][2:]
    # Both were started by ended workers, and ran at the same time.
    assert last[1].started_at < last[0].finished_at


def test_a_killed_worker_is_lost_and_the_next_job_starts(
    store, submit, started, ended, ended_by_tick, tmp_path
):
    victim = started("write_partial")
    waiting = submit("count", n=1)
    os.kill(store.get(victim.id).pid, signal.SIGKILL)
    victim = ended_by_tick(victim)
    assert victim.state is JobState.LOST
    assert victim.error.startswith("The worker vanished (killed, or out of memory); ")
    assert not (tmp_path / "tidied").exists()
    assert not (tmp_path / "out.partial").exists()
    assert ended(waiting).state is JobState.DONE


def test_a_worker_that_ignores_the_cancel_is_killed_after_the_grace(
    runner, store, started, ended_by_tick
):
    job = started("stubborn")
    asked = time.time()
    store.cancel(job.id)
    runner.tick()
    assert store.get(job.id).state is JobState.RUNNING
    job = ended_by_tick(job)
    assert job.state is JobState.CANCELED
    assert job.finished_at - asked > runner.grace_seconds
    assert not psutil.pid_exists(job.pid) or is_zombie(job.pid)


def test_a_cancel_before_the_worker_is_up_cancels(runner, store, submit, ended_by_tick):
    job = submit("count", n=1000, pause=0.05)
    runner.tick()
    store.cancel(job.id)
    job = ended_by_tick(job)
    assert job.state is JobState.CANCELED
    assert job.done == 0


def test_a_job_outlives_the_process_that_submitted_it(runner, store, ended):
    script = PRELUDE + (
        "request = {'n': 5, 'pause': 0.1}\n"
        "print(store.submit('count', request, 't', 'c', 'ann').id)\n"
        "runner.tick()"
    )
    process = run_python(script, store.path)
    process.stdin.close()
    assert process.wait(timeout=20) == 0
    (job,) = store.list()
    assert job.state is JobState.RUNNING
    assert ended(job).state is JobState.DONE


def test_processes_that_tick_at_once_start_a_job_once(runner, store, submit, ended, tmp_path):
    trace = tmp_path / "trace"
    jobs = [submit("count", n=1, trace=str(trace)) for _ in range(3)]
    script = PRELUDE + "sys.stdin.read(1)\nfor _ in range(50): runner.tick()"
    processes = [run_python(script, store.path) for _ in range(2)]
    for process in processes:
        process.stdin.write(b"\n")
        process.stdin.close()
    assert [process.wait(timeout=20) for process in processes] == [0, 0]
    assert {ended(job).state for job in jobs} == {JobState.DONE}
    assert len(trace.read_text().split()) == 3


def test_a_starter_that_dies_before_it_records_the_worker_leaves_the_job_queued(
    runner, store, submit, until, ended, tmp_path
):
    trace = tmp_path / "trace"
    job = submit("count", n=1, trace=str(trace))
    script = PRELUDE + (
        "with store.transaction() as jobs:\n"
        "    runner._start(jobs, store.list()[0], 0.0)\n"
        "    os._exit(9)"
    )
    process = run_python(script, store.path)
    process.stdin.close()
    assert process.wait(timeout=20) == 9
    until(lambda: "not held by this worker" in store.tail(job.id))
    assert store.get(job.id) == job
    assert not trace.exists()
    runner.tick()
    assert ended(job).state is JobState.DONE
    assert len(trace.read_text().split()) == 1


def mark_running(store, job, pid, process_start):
    with store.transaction() as jobs:
        columns = {"state": JobState.RUNNING, "host": socket.gethostname()}
        jobs.update(job.id, pid=pid, process_start=process_start, rss_peak=3 * 2**29, **columns)


def test_a_later_process_with_the_same_number_is_not_the_worker(runner, store, submit):
    stranger = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        job = submit("count", n=1)
        mark_running(store, job, stranger.pid, start_time(stranger.pid) - 60)
        runner.tick()
        job = store.get(job.id)
        assert job.state is JobState.LOST
        assert job.error == ("The worker vanished (killed, or out of memory); last memory 1.5 GiB.")
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.communicate()


@pytest.mark.parametrize("jump", [-3600.0, 3600.0])
def test_a_clock_that_is_set_neither_loses_a_worker_nor_lets_a_canceled_one_stay(
    runner, store, started, ended_by_tick, monkeypatch, jump
):
    job = started("stubborn")
    # All that is made from the clock moves with it, as where the system's clock is set.
    clock, booted, created = time.time, psutil.boot_time, psutil.Process.create_time
    monkeypatch.setattr(time, "time", lambda: clock() + jump)
    monkeypatch.setattr(psutil, "boot_time", lambda: booted() + jump)
    monkeypatch.setattr(psutil.Process, "create_time", lambda self: created(self) + jump)
    runner.tick()
    assert store.get(job.id).state is JobState.RUNNING
    monkeypatch.setattr(time, "time", clock)
    store.cancel(job.id)
    monkeypatch.setattr(time, "time", lambda: clock() + jump)
    assert ended_by_tick(job).state is JobState.CANCELED


def test_a_job_without_a_worker_is_lost_and_names_what_cannot_be_deleted(
    runner, store, submit, tmp_path
):
    # A name inside something that is no folder: not even the administrator can delete it.
    (tmp_path / "file").touch()
    partial = tmp_path / "file" / "out.partial"
    job = submit("count", n=1, partials=[partial])
    mark_running(store, job, None, None)
    runner.tick()
    job = store.get(job.id)
    assert job.state is JobState.LOST
    assert job.error.endswith(f"Not deleted: {partial}.")


def test_a_worker_that_cannot_be_started_fails_its_job(runner, store, submit):
    job = submit("count", n=1)
    store.log_dir.rmdir()
    runner.tick()
    job = store.get(job.id)
    assert job.state is JobState.FAILED
    assert job.error.startswith("The worker could not be started: ")


def is_zombie(pid):
    return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_a_zombie_is_dead(runner, store, submit, until):
    zombie = subprocess.Popen([sys.executable, "-c", ""])
    try:
        job = submit("count", n=1)
        mark_running(store, job, zombie.pid, start_time(zombie.pid))
        until(lambda: is_zombie(zombie.pid))
        runner.tick()
        assert store.get(job.id).state is JobState.LOST
    finally:
        zombie.wait()


def test_a_missing_tasks_module_fails_the_job(runner, submit, ended):
    job = submit("count", n=1)
    dataclasses.replace(runner, kinds_module="no_such_module").tick()
    assert ended(job).error == "ModuleNotFoundError: No module named 'no_such_module'"
