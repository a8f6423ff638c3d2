"""SLURM runner: submits queued jobs to a cluster through submitit, records lost ones.

The job table must be on a file system that all nodes share, with file locks that work there.
"""

import logging
import re
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from analysis.errors import JobError, unknown_name
from analysis.machine.extras import has_extra, install_line
from app.jobs.model import Job, JobState
from app.jobs.process import delete_partials, last_memory
from app.jobs.runner import LocalRunner, passed_variables, worker_command
from app.jobs.store import JobStore
from app.jobs.table import JobTable
from app.settings import Settings

if TYPE_CHECKING:
    from submitit import SlurmExecutor, SlurmJob

logger = logging.getLogger(__name__)

# User option -> submitit's name, and the form of its value.
OPTIONS: Final = {
    "account": ("account", "{}"),
    "constraint": ("constraint", "{}"),
    "gres": ("gres", "{}"),
    "partition": ("partition", "{}"),
    "qos": ("qos", "{}"),
    "cpus_per_task": ("cpus_per_task", "{}"),
    "gpus_per_node": ("gpus_per_node", "{}"),
    "time": ("time", "{}"),
    "mem_gb": ("mem", "{}GB"),
}
_NUMBERS: Final = ("cpus_per_task", "gpus_per_node", "mem_gb", "time")
_VALUE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:&|-]{0,127}")
# SLURM states of unfinished jobs; all others are final.
_OPEN: Final = (
    "PENDING",
    "CONFIGURING",
    "RUNNING",
    "COMPLETING",
    "SUSPENDED",
    "RESIZING",
    "PREEMPTED",
    "REQUEUED",
    "REQUEUE_HOLD",
    "READY",
    "UNKNOWN",
)
_ENDS: Final = {
    "OUT_OF_MEMORY": "SLURM killed the worker: out of memory",
    "TIMEOUT": "SLURM stopped the worker: its time limit was reached",
    "NODE_FAIL": "The node of the worker failed",
    "CANCELLED": "The job was canceled in SLURM",
}


def parse_options(text: str) -> dict[str, str | int]:
    """Parse SLURM options, `partition=gpu,gpus_per_node=1,mem_gb=64,time=240`."""
    options: dict[str, str | int] = {}
    for part in filter(None, text.split(",")):
        name, equals, value = part.partition("=")
        if name not in OPTIONS:
            raise JobError(unknown_name("SLURM option", name, OPTIONS))
        is_number = name in _NUMBERS
        if not equals or not re.fullmatch("[0-9]{1,9}" if is_number else _VALUE, value):
            kind = "a whole number" if is_number else "a plain word"
            raise JobError(f"The SLURM option {name} takes {kind}, as {name}=4; got {value!r}.")
        options[name] = int(value) if is_number else value
    return options


@dataclass(frozen=True, slots=True)
class SlurmRunner:
    """Runs the jobs of a store on a cluster; stateless, so any process may have one."""

    store: JobStore  # the jobs, in a table visible to all nodes
    options: Mapping[str, str | int] = field(default_factory=dict)  # see `parse_options`
    limit: int = 16  # max jobs submitted at once; the others wait in our queue
    grace_seconds: float = 30.0  # grace period of a canceled worker before SLURM stops it
    silence_seconds: float = 30.0  # silence of a worker after which SLURM is queried
    # The module whose `KINDS` the workers use.
    kinds_module: str = "app.jobs.kinds"

    @property
    def folder(self) -> Path:
        """Folder of submitit's files, readable by the owner only."""
        return self.store.path.parent / "slurm"

    def tick(self) -> None:
        """Record jobs that SLURM ended, stop canceled ones, submit queued ones.

        Idempotent, in one transaction, like the local runner's.
        """
        now = time.time()
        # Query before reading the table: an end that a worker recorded in between counts.
        states = self._states(now)
        with self.store.transaction() as jobs:
            for job in jobs.in_batches():
                self._attend(jobs, job, states.get(job.batch, "UNKNOWN"), now)
            free = self.limit - len(jobs.in_batches())
            for job in jobs.queued(max(free, 0)):
                self._start(jobs, job, now)
            # Under the lock: another process may be submitting the next job.
            self._sweep({job.batch for job in jobs.in_batches()})

    def _states(self, now: float) -> dict[str, str]:
        """SLURM states of jobs with silent workers, by batch."""
        with self.store.transaction() as jobs:
            batches = jobs.in_batches()
        states = {}
        for job in batches:
            is_silent = now - (job.heartbeat_at or now) > self.silence_seconds
            # Workers that report need no query.
            if job.state is JobState.QUEUED or is_silent:
                watcher = self._batch_job(job).watcher
                state = watcher.get_state(job.batch, mode="force" if is_silent else "standard")
                states[job.batch] = state.upper().split(" ")[0].rstrip("+")
        return states

    def _attend(self, jobs: JobTable, job: Job, state: str, now: float) -> None:
        if state not in _OPEN:
            jobs.update(job.id, finished_at=now, **_ended_job_columns(job, state))
        elif job.cancel_at is not None and (
            job.state is JobState.QUEUED or now - job.cancel_at > self.grace_seconds
        ):
            self._batch_job(job).cancel(check=False)
            jobs.update(job.id, finished_at=now, **_ended_job_columns(job, "CANCELLED"))

    def _start(self, jobs: JobTable, job: Job, now: float) -> None:
        from submitit.core.utils import CommandFunction, FailedJobError

        try:
            command = [*worker_command(self.store, self.kinds_module), "--batch", job.id]
            batch_job = self._executor(job).submit(CommandFunction(command, verbose=False))
        except (FailedJobError, OSError) as error:
            logger.exception("Cannot hand job %s to SLURM", job.id)
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            message = f"SLURM did not take the job: {lines[-1][:300] if lines else error!r}"
            jobs.update(job.id, state=JobState.FAILED, finished_at=now, error=message)
            return
        jobs.update(job.id, batch=batch_job.job_id)

    def _executor(self, job: Job) -> "SlurmExecutor":
        from submitit import SlurmExecutor

        self.folder.mkdir(mode=0o700, exist_ok=True)
        self.folder.chmod(0o700)
        try:
            executor = SlurmExecutor(self.folder)
        except RuntimeError as error:
            raise JobError(
                "SLURM is not on this machine: no `srun` on the PATH. Start the dashboard on a "
                "login node, or without --slurm."
            ) from error
        parameters = {}
        for name, setting in self.options.items():
            parameter, form = OPTIONS[name]
            parameters[parameter] = form.format(setting)
        executor.update_parameters(
            job_name=f"moeprune-{job.kind}-{job.id}",
            # By name, so that no values are written to files and other variables are withheld.
            additional_parameters={"export": ",".join(sorted(passed_variables()))},
            **{"time": 24 * 60, **parameters},  # minutes; submitit's own default is 5
        )
        return executor

    def _batch_job(self, job: Job) -> "SlurmJob[Any]":
        from submitit import SlurmJob

        return SlurmJob(folder=self.folder, job_id=job.batch)

    def _sweep(self, active: set[str]) -> None:
        """Delete submitit's files of ended jobs; the log is ours, elsewhere."""
        for path in self.folder.iterdir() if self.folder.is_dir() else ():
            # The job id, or the script from before there was one.
            name = re.fullmatch(r"(\d+)_.*|\.submission_file_.*", path.name)
            if name and name[1] not in active and (name[1] or not active):
                path.unlink(missing_ok=True)


def check_slurm() -> None:
    """Refuse a machine that cannot submit to SLURM."""
    if not has_extra("slurm"):
        raise JobError(f"--slurm needs submitit: {install_line('slurm')}.")
    for program in ("sbatch", "sacct", "scancel", "srun"):
        if shutil.which(program) is None:
            raise JobError(f"--slurm needs {program} on the PATH; start on a login node.")


def _ended_job_columns(job: Job, state: str) -> dict[str, Any]:
    """Columns that record the end of a job that SLURM ended; deletes its partial output."""
    was_running = job.state is JobState.RUNNING
    if job.cancel_at is not None:
        end, error = JobState.CANCELED, "SLURM stopped the worker." if was_running else ""
    else:
        reason = _ENDS.get(state, f"The worker vanished; SLURM says {state}")
        end, error = JobState.LOST, f"{reason}; {last_memory(job)}."
    return {"state": end, "error": delete_partials(job, error) if was_running else error}


Runner = LocalRunner | SlurmRunner


def runner_of(settings: Settings, store: JobStore, *, starts: bool = True) -> Runner:
    """The runner of an installation or server; without `starts`, it starts no job."""
    runner: Runner = LocalRunner(store)
    if settings.slurm is not None:
        runner = SlurmRunner(store, parse_options(settings.slurm))
    return runner if starts else replace(runner, limit=0)
