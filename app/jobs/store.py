"""Job store: submit, look up, cancel, retry; reports of workers."""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import signal
import socket
import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.errors import JobError
from analysis.files.shipped import tool_version
from analysis.pace import Pace
from analysis.progress import Progress
from app.jobs.model import Job, JobState, is_stale
from app.jobs.process import signal_worker, start_time
from app.jobs.redact import holds_token, redact
from app.jobs.table import JobTable, canonical_json, connect, create, transaction

if TYPE_CHECKING:
    from app.settings import Settings

_MAX_QUEUED = 1_000
_TAIL_BYTES = 256 * 1024


class JobStore:
    """The job table and its logs, safe for concurrent processes.

    Both are created if missing and readable by their owner only, because requests name paths and
    models. `shared`: several machines write to the table.
    """

    def __init__(self, path: Path, *, shared: bool = False) -> None:
        self.path = path.absolute()
        self.log_dir = self.path.parent / "logs"
        for folder in (self.path.parent, self.log_dir):
            # Keep the permissions of an existing folder.
            if not folder.is_dir():
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        create(self.path, shared=shared)

    def transaction(self) -> AbstractContextManager[JobTable]:
        """The rows under the write lock, for changes that must happen together."""
        return transaction(self.path)

    def submit(  # noqa: PLR0913  (each one is a column that only the caller knows)
        self,
        kind: str,
        request: Mapping[str, Any],
        title: str,
        command: str,
        requested_by: str,
        partials: Iterable[str | Path] = (),
    ) -> Job:
        """Queue a job; a runner's `tick` starts it."""
        canonical = canonical_json(dict(request))
        if any(map(holds_token, (canonical, title, command))):
            raise JobError(
                "The request holds a Hugging Face token, and requests are stored and shown. "
                "Leave it out and set HF_TOKEN in the environment."
            )
        job_id = secrets.token_hex(6)
        job = Job(
            id=job_id,
            kind=kind,
            title=title,
            request=json.loads(canonical),
            command=command,
            digest=hashlib.sha256(canonical.encode()).hexdigest(),
            state=JobState.QUEUED,
            requested_by=requested_by,
            version=tool_version(),
            log_path=self.log_dir / f"{job_id}.log",
            partials=tuple(str(Path(path).absolute()) for path in partials),
            created_at=time.time(),
        )
        with self.transaction() as jobs:
            if jobs.counts().get(JobState.QUEUED, 0) >= _MAX_QUEUED:
                raise JobError(
                    f"{_MAX_QUEUED:,} jobs are queued already; cancel some, or wait until they ran."
                )
            jobs.insert(job)
        return job

    def get(self, job_id: str) -> Job:
        """The job with this id, or with the only id that starts like this."""
        with connect(self.path) as connection:
            return _find(JobTable(connection), job_id)

    def list(self, limit: int = 50, kinds: Collection[str] = ()) -> tuple[Job, ...]:
        """The last `limit` jobs of these kinds (or all), newest first."""
        with connect(self.path) as connection:
            return JobTable(connection).newest(limit, kinds)

    def page(self, limit: int, first: int = 0, kinds: Collection[str] = ()) -> tuple[Job, ...]:
        """`limit` jobs of these kinds (or all) from `first` on: running, then newest first."""
        with connect(self.path) as connection:
            return JobTable(connection).page(limit, first, kinds)

    def counts(self, kinds: Collection[str] = ()) -> dict[JobState, int]:
        """Number of jobs of these kinds (or all) per state."""
        with connect(self.path) as connection:
            return JobTable(connection).counts(kinds)

    def cancel(self, job_id: str, requested_by: str | None = None) -> Job:
        """Cancel a job: at once while queued, else by SIGTERM to the worker and its children.

        A later `tick` kills a worker that does not stop. A worker on another host sees the request
        at its next heartbeat; if it has been silent for long, its job ends here, or in SLURM at a
        `tick`. `requested_by` is None for those who may cancel everything.
        """
        now = time.time()
        with self.transaction() as jobs:
            job = _find(jobs, job_id)
            if job.is_finished:
                raise JobError(f"Job {job.id} is {job.state} already; there is nothing to cancel.")
            _check_owner(job, requested_by, "cancel")
            ended = {"state": JobState.CANCELED, "finished_at": now, "cancel_at": now}
            if job.state is JobState.QUEUED and not job.batch:
                jobs.update(job.id, **ended)
            elif is_stale(job, now) and not job.batch:
                error = f"The worker on {job.host} no longer reported; its output was left there."
                jobs.update(job.id, error=error, **ended)
            elif job.cancel_at is None:
                # A repeated cancel must not restart the grace period.
                jobs.update(job.id, cancel_at=now)
        if job.state is JobState.RUNNING:
            signal_worker(job, signal.SIGTERM)
        return self.get(job.id)

    def retry(self, job_id: str, requested_by: str | None = None) -> Job:
        """Queue the same request again, owned by the requester (None: by the old owner)."""
        job = self.get(job_id)
        if not job.is_finished:
            raise JobError(f"Job {job.id} is {job.state}; only a finished job can be retried.")
        return self.submit(
            job.kind,
            job.request,
            title=job.title,
            command=job.command,
            requested_by=job.requested_by if requested_by is None else requested_by,
            partials=job.partials,
        )

    def remove(self, job_id: str, requested_by: str | None = None) -> None:
        """Forget a finished job and delete its log; arguments as for `cancel`."""
        with self.transaction() as jobs:
            job = _find(jobs, job_id)
            if not job.is_finished:
                raise JobError(f"Job {job.id} is {job.state}; cancel it before removing it.")
            _check_owner(job, requested_by, "remove")
            jobs.delete(job.id)
        job.log_path.unlink(missing_ok=True)

    def tail(self, job_id: str, lines: int = 40) -> str:
        """The last lines of the job's log, redacted; empty before the job starts."""
        path = self.get(job_id).log_path
        try:
            with path.open("rb") as log:
                size = log.seek(0, os.SEEK_END)
                log.seek(max(size - _TAIL_BYTES, 0))
                text = log.read().decode(errors="replace")
        except (FileNotFoundError, IsADirectoryError):
            return ""
        log_lines = text.split("\n")
        if size > _TAIL_BYTES:
            # The first line may be the end of a token, which redaction would miss.
            log_lines = log_lines[1:]
        # Keep only the last state of a progress bar.
        visible_lines = [line.rstrip("\r").rpartition("\r")[2] for line in log_lines if line]
        return redact("\n".join(visible_lines[-lines:]))

    def claim(self, job_id: str, batch: str = "") -> Job:
        """The job that this worker was started for; of a SLURM job `batch`, record the worker.

        Waits for the transaction of the runner that started it. Fails if that runner died before it
        recorded the worker: the job is still queued then, for another worker.
        """
        with self.transaction() as jobs:
            job, now = _find(jobs, job_id), time.time()
            if batch:
                is_mine = job.state is JobState.QUEUED and job.batch == batch
                is_mine = is_mine and job.cancel_at is None
            else:
                is_mine = job.pid == os.getpid() and job.host == socket.gethostname()
                is_mine = is_mine and job.state is JobState.RUNNING
            if not is_mine:
                raise JobError(f"Job {job.id} is {job.state} and not held by this worker.")
            if batch:
                place = {"host": socket.gethostname(), "pid": os.getpid()}
                place |= {"process_start": start_time(os.getpid()), "started_at": now}
                jobs.update(job.id, state=JobState.RUNNING, **place)
            jobs.update(job.id, heartbeat_at=now)
        return job

    def report(self, job_id: str, progress: Progress, pace: Pace) -> None:
        """Record the progress of a running job, of which the pace knows."""
        values: dict[str, Any] = {
            "phase": redact(" ".join(filter(None, (progress.phase, progress.at)))),
            "done": progress.done,
            "total": progress.total,
            "unit": redact(progress.unit),
            "share": pace.fraction,
            "seconds_left": pace.seconds_left,
            "progress_at": time.time(),
        }
        with self.transaction() as jobs:
            if _find(jobs, job_id).state is JobState.RUNNING:
                jobs.update(job_id, **values)

    def heartbeat(self, job_id: str, rss_peak: int) -> Job:
        """Record that the worker lives; the row says whether it should stop."""
        with self.transaction() as jobs:
            job = _find(jobs, job_id)
            if job.state is JobState.RUNNING:
                jobs.update(job.id, heartbeat_at=time.time(), rss_peak=max(rss_peak, job.rss_peak))
        return job

    def finish(
        self,
        job_id: str,
        state: JobState,
        *,
        error: str = "",
        result: Mapping[str, Any] | None = None,
    ) -> Job:
        """Record the end of a running job; ended jobs are unchanged."""
        values: dict[str, Any] = {"state": state, "error": redact(error)}
        if result is not None:
            # Redacted as text; readers parse it again.
            values["result"] = redact(canonical_json(dict(result)))
        with self.transaction() as jobs:
            if _find(jobs, job_id).state is JobState.RUNNING:
                jobs.update(job_id, finished_at=time.time(), **values)
        return self.get(job_id)


def _find(jobs: JobTable, job_id: str) -> Job:
    matches = jobs.starting_with(job_id) if re.fullmatch("[0-9a-f]{1,12}", job_id) else ()
    if len(matches) == 1:
        return matches[0]
    if matches:
        names = ", ".join(job.id for job in matches)
        raise JobError(f"Several jobs start with {job_id!r}: {names}. Give more of the id.")
    recent = ", ".join(job.id for job in jobs.newest(5))
    hint = f"The last ones are: {recent}." if recent else "There are no jobs yet."
    raise JobError(f"Unknown job {job_id!r}. {hint}")


def _check_owner(job: Job, requested_by: str | None, action: str) -> None:
    if requested_by is not None and job.requested_by and requested_by != job.requested_by:
        raise JobError(f"Job {job.id} belongs to {job.requested_by}, who alone can {action} it.")


def open_store(settings: Settings) -> JobStore:
    """The job table of an installation or server."""
    return JobStore(settings.jobs_db, shared=settings.slurm is not None)
