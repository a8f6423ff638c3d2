"""A job store in a fresh folder, a runner on the tasks of this folder, and waiting."""

import os
import signal
import time
from pathlib import Path

import pytest

from app.jobs.model import JobState
from app.jobs.process import signal_worker
from app.jobs.runner import LocalRunner
from app.jobs.store import JobStore

# Generous, for other work may share the machine; nothing waits longer than it must.
DEADLINE_SECONDS = 60.0


@pytest.fixture
def store(tmp_path):
    return JobStore(tmp_path / "state" / "jobs.sqlite")


@pytest.fixture
def tasks_on_path(monkeypatch):
    """Workers find the tasks of this folder."""
    paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))


@pytest.fixture
def runner(store, tasks_on_path):
    yield LocalRunner(store, grace_seconds=0.3, kinds_module="job_tasks")
    for job in store.list():
        if job.state is JobState.RUNNING:
            signal_worker(job, signal.SIGKILL)


@pytest.fixture
def submit(store):
    def _submit(kind, *, requested_by="ann", partials=(), **request):
        command = f"moeprune {kind}"
        return store.submit(kind, request, f"A {kind}", command, requested_by, partials)

    return _submit


def wait_until(condition):
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not (value := condition()):
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)
    return value


@pytest.fixture
def until():
    return wait_until


@pytest.fixture
def started(runner, submit, tmp_path):
    """Start a task that says when it is ready; its files are out.partial, ready and tidied."""

    def _started(kind):
        partial, ready, tidied = (
            str(tmp_path / name) for name in ("out.partial", "ready", "tidied")
        )
        job = submit(kind, partials=[partial], paths=[partial], ready=ready, tidied=tidied)
        runner.tick()
        wait_until(Path(ready).exists)
        return job

    return _started


@pytest.fixture
def ended(store):
    """The job once its worker has recorded an end; nobody ticks meanwhile."""

    def _ended(job):
        wait_until(lambda: store.get(job.id).is_finished)
        return store.get(job.id)

    return _ended


@pytest.fixture
def ended_by_tick(store, runner):
    """The job once it has ended, with somebody ticking."""

    def _ended(job):
        wait_until(lambda: runner.tick() or store.get(job.id).is_finished)
        return store.get(job.id)

    return _ended
