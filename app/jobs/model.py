"""Job: one piece of long work, as a row of the job table shows it at one moment."""

import socket
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

STALE_SECONDS = 30.0


class JobState(StrEnum):
    """Where a job stands; only queued and running ones can still change."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELED = "canceled"
    LOST = "lost"  # the worker vanished without recording an end


ACTIVE = (JobState.RUNNING, JobState.QUEUED)
FINISHED = frozenset({JobState.DONE, JobState.FAILED, JobState.CANCELED, JobState.LOST})


@dataclass(frozen=True, slots=True)
class Job:
    """A row of the job table. Times are seconds since the epoch, None while not reached."""

    id: str  # 12 hexadecimal digits
    kind: str  # what is done, a key of the worker's `KINDS`
    title: str  # what a person reads in the list
    request: dict[str, Any]  # what was asked, as JSON
    command: str  # the equivalent `moeprune ...` command line
    digest: str  # sha256 of the canonical JSON of `request`
    state: JobState
    requested_by: str  # who asked; empty when not known
    version: str  # of the program that took the request
    log_path: Path
    # Paths to delete unless the job ends as done; only names with ".partial" are.
    partials: tuple[str, ...]
    created_at: float
    started_at: float | None = None
    heartbeat_at: float | None = None
    finished_at: float | None = None
    cancel_at: float | None = None  # when the cancel was asked for; the job may still be running
    # phase, done, total, unit: see `analysis.progress.Progress`.
    phase: str = ""
    done: int = 0
    total: int = 0
    unit: str = ""
    # phase_started_at, phase_start_done: when the phase was first seen, and how far it was then.
    phase_started_at: float | None = None
    phase_start_done: int = 0
    progress_at: float | None = None  # when `done` last changed
    host: str = ""  # where the worker runs; empty while queued
    batch: str = ""  # number of the SLURM job that it was handed to; empty for a local one
    # pid, process_start: the worker's process; its start, see `app.jobs.process.start_time`, tells
    # it from a later process that got the same number.
    pid: int | None = None
    process_start: float | None = None
    rss_peak: int = 0  # the largest memory seen, in bytes; 0 when never seen
    error: str = ""  # one line; empty when there is nothing to say
    result: dict[str, Any] | None = None  # what the task returned

    @property
    def is_finished(self) -> bool:
        """Nothing about the job will change any more."""
        return self.state in FINISHED

    @property
    def fraction(self) -> float:
        """Share of the current phase, 0..1; 1 when the job is done, 0 when the total is unknown."""
        if self.state is JobState.DONE:
            return 1.0
        return min(self.done / self.total, 1.0) if self.total else 0.0

    def eta_seconds(self, now: float) -> float | None:
        """Seconds left in the current phase at its pace so far; None when there is no pace yet.

        The pace counts from where the phase was first seen, so a resumed run is not flattered by
        what an earlier one had finished.
        """
        if self.state is not JobState.RUNNING or not self.total:
            return None
        if self.phase_started_at is None or self.progress_at is None:
            return None
        gained = self.done - self.phase_start_done
        elapsed = self.progress_at - self.phase_started_at
        if gained <= 0 or elapsed <= 0:
            return None
        left = elapsed * (self.total - self.done) / gained
        return max(left - (now - self.progress_at), 0.0)


def is_stale(job: Job, now: float) -> bool:
    """A job of another host that has been silent for too long.

    Its process cannot be looked at from here, so it is reported and never killed.
    """
    if job.state is not JobState.RUNNING or job.host == socket.gethostname():
        return False
    last_sign = job.heartbeat_at or job.started_at or job.created_at
    return now - last_sign > STALE_SECONDS
