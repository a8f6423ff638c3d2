"""Job: a row of the job table."""

import socket
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

STALE_SECONDS = 30.0


class JobState(StrEnum):
    """State of a job; only queued and running jobs can change."""

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
    """A row of the job table. Times are seconds since the epoch, None if not reached."""

    id: str  # 12 hexadecimal digits
    kind: str  # key of the worker's `KINDS`
    title: str  # title in the list
    request: dict[str, Any]  # the request as JSON
    command: str  # the equivalent `moeprune ...` command line
    digest: str  # sha256 of the canonical JSON of `request`
    state: JobState
    requested_by: str  # the requesting user; empty if unknown
    version: str  # version of the program that queued it
    log_path: Path
    # Paths to delete unless the job succeeds; only names with ".partial" are deleted.
    partials: tuple[str, ...]
    created_at: float
    started_at: float | None = None
    heartbeat_at: float | None = None
    finished_at: float | None = None
    cancel_at: float | None = None  # when the cancel was requested; the job may still be running
    # See `analysis.progress.Progress`.
    phase: str = ""
    done: int = 0
    total: int = 0
    unit: str = ""
    # See `analysis.pace.Pace`; None if the task does not say.
    share: float | None = None
    seconds_left: float | None = None
    progress_at: float | None = None  # when these were reported
    host: str = ""  # where the worker runs; empty while queued
    batch: str = ""  # SLURM job id; empty for a local job
    # The worker's process; its start (see `start_time`) tells it from a later one with its pid.
    pid: int | None = None
    process_start: float | None = None
    rss_peak: int = 0  # peak memory in bytes; 0 if unknown
    error: str = ""  # one line; empty if none
    result: dict[str, Any] | None = None  # return value of the task

    @property
    def is_finished(self) -> bool:
        """Whether the job has ended."""
        return self.state in FINISHED

    @property
    def fraction(self) -> float:
        """Share of the whole job, 0..1; if the task does not say, of its phase."""
        if self.state is JobState.DONE:
            return 1.0
        if self.share is not None:
            return self.share
        return min(self.done / self.total, 1.0) if self.total else 0.0

    def eta_seconds(self, now: float) -> float | None:
        """Seconds left of the whole job; None if unknown."""
        if self.state is not JobState.RUNNING or self.progress_at is None:
            return None
        if self.seconds_left is None:
            return None
        return max(self.seconds_left - (now - self.progress_at), 0.0)


def is_stale(job: Job, now: float) -> bool:
    """Whether a job of another host, whose process is not visible from here, has gone silent."""
    if job.state is not JobState.RUNNING or job.host == socket.gethostname():
        return False
    last_sign = job.heartbeat_at or job.started_at or job.created_at
    return now - last_sign > STALE_SECONDS
