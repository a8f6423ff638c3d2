"""Local runner: starts queued jobs as local processes, records lost ones."""

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any

from app.jobs.model import Job, JobState
from app.jobs.process import (
    delete_partials,
    is_alive,
    kill_orphans,
    last_memory,
    signal_worker,
    start_time,
)
from app.jobs.store import JobStore
from app.jobs.table import JobTable

logger = logging.getLogger(__name__)

# All other variables, and so other secrets, are withheld from workers.
_ENVIRONMENT = frozenset({"PATH", "HOME", "LANG", "TMPDIR", "PYTHONPATH", "VIRTUAL_ENV"})
_ENVIRONMENT_PREFIXES = (
    "CUDA_",
    "HF_",
    "HUGGINGFACE_",
    "LC_",
    "MKL_",
    "MOEPRUNE_",
    "NVIDIA_",
    "OMP_",
    "TORCH_",
    "XDG_",
)


@dataclass(frozen=True, slots=True)
class LocalRunner:
    """Runs the jobs of a store on this machine; stateless, so any process may have one."""

    store: JobStore  # the jobs
    limit: int = 1  # max concurrent jobs on this machine
    grace_seconds: float = 5.0  # grace period of a canceled worker before it is killed
    # The module whose `KINDS` the workers use.
    kinds_module: str = "app.jobs.kinds"

    def tick(self) -> None:
        """Record lost jobs, kill workers that do not stop, start queued jobs up to the limit.

        Idempotent, in one transaction: of several processes that tick at once, one starts a job. If
        this process dies within, the table is unchanged, and a started worker finds no job.
        """
        now = time.time()
        host = socket.gethostname()
        with self.store.transaction() as jobs:
            for job in jobs.running_on(host):
                if not is_alive(job):
                    kill_orphans(job)
                    jobs.update(job.id, finished_at=now, **_lost_job_columns(job))
                # Also if the clock was set back, which would extend the grace period.
                elif job.cancel_at is not None and abs(now - job.cancel_at) > self.grace_seconds:
                    signal_worker(job, signal.SIGKILL)
            # A worker that was asked to stop still occupies its slot.
            free = self.limit - len(jobs.running_on(host))
            for job in jobs.queued(max(free, 0)):
                self._start(jobs, job, now)

    def _start(self, jobs: JobTable, job: Job, now: float) -> None:
        try:
            process = self._start_worker(job)
        except OSError as error:
            logger.exception("Cannot start job %s", job.id)
            message = f"The worker could not be started: {error}."
            jobs.update(job.id, state=JobState.FAILED, finished_at=now, error=message)
            return
        jobs.update(
            job.id,
            state=JobState.RUNNING,
            host=socket.gethostname(),
            pid=process.pid,
            process_start=start_time(process.pid),
            started_at=now,
            heartbeat_at=now,
        )
        # Collects the exit status, so that the ended worker does not stay a zombie.
        threading.Thread(target=process.wait, name=f"wait-{job.id}", daemon=True).start()

    def _start_worker(self, job: Job) -> subprocess.Popen[bytes]:
        arguments = worker_command(self.store, self.kinds_module)
        arguments += ["--limit", str(self.limit), "--grace", str(self.grace_seconds), job.id]
        log = os.open(job.log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            return subprocess.Popen(  # noqa: S603  (a list, no shell, nothing from the request)
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                close_fds=True,
                start_new_session=True,
                # An ended worker passes these on to the next job.
                env={name: os.environ[name] for name in passed_variables()},
            )
        finally:
            os.close(log)


def _lost_job_columns(job: Job) -> dict[str, Any]:
    """Columns that record the end of a job whose worker is dead; deletes its partial output."""
    state, error = JobState.CANCELED, "The worker was stopped before it could tidy up."
    if job.cancel_at is None:
        state = JobState.LOST
        error = f"The worker vanished (killed, or out of memory); {last_memory(job)}."
    return {"state": state, "error": delete_partials(job, error)}


def worker_command(store: JobStore, kinds_module: str) -> list[str]:
    """Command to start a worker; options and the job id follow."""
    # -P: do not search the working directory, which may have a folder "app".
    program = [sys.executable, "-P", "-m", "app.jobs.worker"]
    return [*program, "--db", str(store.path), "--kinds", kinds_module]


def passed_variables() -> set[str]:
    """Names of the environment variables that workers get; all others are withheld."""
    return {
        name
        for name in os.environ
        if name in _ENVIRONMENT or name.startswith(_ENVIRONMENT_PREFIXES)
    }
