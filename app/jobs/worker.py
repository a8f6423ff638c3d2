"""Worker: the process that does one job (`python -m app.jobs.worker`)."""

import argparse
import contextlib
import faulthandler
import importlib
import logging
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from analysis.errors import JobError, UserError, unknown_name
from analysis.pace import Pace
from analysis.progress import Progress
from analysis.stats.rates import keep_rates, known_rates
from app.jobs.model import Job, JobState
from app.jobs.process import delete_partials, format_memory, peak_memory
from app.jobs.redact import RedactedStream
from app.jobs.runner import LocalRunner
from app.jobs.store import JobStore
from app.jobs.table import canonical_json
from app.progress_shown import Lines

logger = logging.getLogger(__name__)

_REPORT_SECONDS = 0.5
_HEARTBEAT_SECONDS = 2.0
_OUT_OF_TIME = (
    "The time limit of the SLURM job was near; retry resumes from saved work, or needs a longer "
    "`time` if nothing was saved."
)


class _Canceled(BaseException):
    """The job should stop; not an `Exception`, so that tasks do not catch it by accident."""


class CancelSwitch:
    """Turns SIGTERM into an exception, only inside the task.

    Bookkeeping around the task and cleanup after a cancel are not interrupted.
    """

    def __init__(self) -> None:
        self.requested = False
        self.is_out_of_time = False
        self._armed = False

    def handle(self, _number: int, _frame: FrameType | None) -> None:
        """The signal handler."""
        self.requested = True
        if self._armed:
            self._armed = False
            raise _Canceled

    def run_out(self, number: int, frame: FrameType | None) -> None:
        """Handler of the time-limit signal: stops like a cancel."""
        self.is_out_of_time = True
        self.handle(number, frame)

    @contextlib.contextmanager
    def armed(self) -> Iterator[None]:
        """Context in which a cancel interrupts; an earlier cancel does so at once."""
        self._armed = True
        try:
            if self.requested:
                raise _Canceled
            yield
        finally:
            self._armed = False


class Reporter:
    """Writes a running job's progress and heartbeat, and notices a cancel from another host.

    The heartbeat has its own thread, because a task may yield nothing for a long time.
    """

    def __init__(self, store: JobStore, job: Job) -> None:
        self._store = store
        self._job = job
        self._pace = Pace(usual=known_rates)
        # The heartbeat looks whether a line is due while the task yields nothing.
        self._lines = Lines(self._pace, partial(logger.info, "%s"), quiet_seconds=0)
        self._latest: Progress | None = None
        self._last_reported: Progress | None = None
        self._reported_at = 0.0
        self._lock = threading.Lock()  # both threads write
        self._stop = threading.Event()
        # A daemon, so that the worker exits even if its end cannot be recorded.
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def __enter__(self) -> "Reporter":
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stop.set()
        self._thread.join()
        self._write()

    def keep_rates(self) -> None:
        """Keep the rates of this machine that the job has measured, however it ended."""
        try:
            keep_rates(self._pace.rates)
        except OSError as error:
            logger.warning("The rates of this machine cannot be kept: %s", error.strerror)

    def report(self, progress: Progress) -> None:
        """Log what is new in a step of the task, and update the table at intervals."""
        self._pace.take(progress)
        self._lines.take(progress)
        if progress.note:
            logger.info("%s: %s", progress.phase, progress.note)
        self._latest = progress
        if time.monotonic() - self._reported_at >= _REPORT_SECONDS:
            self._write()

    def _write(self) -> None:
        with self._lock:
            progress = self._latest
            if progress is None or progress == self._last_reported:
                return
            with _log_job_errors():
                self._store.report(self._job.id, progress, self._pace)
            self._last_reported = progress
            self._reported_at = time.monotonic()

    def _beat(self) -> None:
        while not self._stop.wait(_HEARTBEAT_SECONDS):
            self._lines.tick()
            self._write()
            with _log_job_errors():
                job = self._store.heartbeat(self._job.id, peak_memory())
                if job.cancel_at is not None or job.is_finished:
                    os.kill(os.getpid(), signal.SIGTERM)


@contextlib.contextmanager
def _log_job_errors() -> Iterator[None]:
    # A table locked for too long costs one report, not hours of work.
    try:
        yield
    except JobError:
        logger.exception("Not reported")


@dataclass(frozen=True, slots=True)
class TaskOutcome:
    """How a task ended."""

    state: JobState
    error: str = ""
    result: dict[str, Any] | None = None


def run_task(
    job: Job, kinds_module: str, switch: CancelSwitch, report: Callable[[Progress], None]
) -> TaskOutcome:
    """Run the job and return how it ended; no exception of the task escapes."""
    try:
        with switch.armed():
            steps = _kind(kinds_module, job.kind).job(job.request)
        result = _drain(steps, switch, report)
        # Inside the try: a result that is not JSON is the task's failure.
        canonical_json(result)
    except _Canceled:
        return _stop_outcome(switch)
    except (Exception, SystemExit) as error:
        # The one broad except: any exception of a task ends the job.
        if switch.requested:
            # Happens if the cancel reached a child of the task first.
            logger.info("Stopped while", exc_info=True)
            return _stop_outcome(switch)
        return _failure(error)
    return TaskOutcome(JobState.DONE, result=result)


def _stop_outcome(switch: CancelSwitch) -> TaskOutcome:
    if switch.is_out_of_time:
        logger.info("Out of time")
        return TaskOutcome(JobState.FAILED, error=_OUT_OF_TIME)
    logger.info("Canceled")
    return TaskOutcome(JobState.CANCELED)


def _kind(module: str, name: str) -> Any:
    kinds = importlib.import_module(module).KINDS
    if name not in kinds:
        raise JobError(unknown_name("kind of job", name, kinds))
    return kinds[name]


def _drain(
    steps: Generator[Progress, None, dict[str, Any]],
    switch: CancelSwitch,
    report: Callable[[Progress], None],
) -> dict[str, Any]:
    # Closing runs the task's `finally` blocks when a cancel comes between two steps.
    with contextlib.closing(steps):
        while True:
            try:
                with switch.armed():
                    progress = next(steps)
            except StopIteration as end:
                result: dict[str, Any] = end.value
                return result
            report(progress)


def _failure(error: BaseException) -> TaskOutcome:
    message = str(error)
    if isinstance(error, UserError):
        logger.error("%s", error)
    else:
        logger.error("The task failed", exc_info=error)
        message = f"{type(error).__name__}: {error}"
    if isinstance(error, MemoryError):
        peak = format_memory(peak_memory())
        message = f"Out of memory: the worker had reached {peak} and got no more."
    return TaskOutcome(JobState.FAILED, error=" ".join(message.split())[:500])


def main() -> int:
    """Run the job named on the command line; 0 if it succeeds."""
    arguments = _arguments()
    batch = os.environ.get("SLURM_JOB_ID", "") if arguments.batch else ""
    store = JobStore(arguments.db, shared=arguments.batch)
    if arguments.batch:  # output of this process and its children goes to the job's log
        path = store.get(arguments.id).log_path
        log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
    # A crash in native code writes its trace past Python.
    faulthandler.enable(sys.stderr)
    with (
        contextlib.closing(RedactedStream(sys.stdout)) as output,
        contextlib.closing(RedactedStream(sys.stderr)) as errors,
        contextlib.redirect_stdout(output),
        contextlib.redirect_stderr(errors),
    ):
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stdout)
        switch = CancelSwitch()
        signal.signal(signal.SIGTERM, switch.handle)
        # SLURM's signal that the time limit is near.
        signal.signal(signal.SIGUSR2, switch.run_out)
        try:
            job = store.claim(arguments.id, batch)
        except JobError as error:
            logger.warning("Nothing done: %s", error)
            return 1
        try:
            return _work(store, job, arguments.kinds, switch)
        finally:
            # The queue advances without a server; on a cluster it is on another machine.
            if not arguments.batch:
                LocalRunner(store, arguments.limit, arguments.grace, arguments.kinds).tick()


def _work(store: JobStore, job: Job, kinds_module: str, switch: CancelSwitch) -> int:
    logger.info("Job %s: %s", job.id, job.command)
    with Reporter(store, job) as reporter:
        outcome = run_task(job, kinds_module, switch, reporter.report)
        # While the job still counts as running: the next one may write to the same place.
        is_done = outcome.state is JobState.DONE
        error = outcome.error if is_done else delete_partials(job, outcome.error)
    store.heartbeat(job.id, peak_memory())
    ended = store.finish(job.id, outcome.state, error=error, result=outcome.result)
    logger.info("Job %s: %s", ended.id, ended.state)
    reporter.keep_rates()  # which may wait for another process
    return 0 if ended.state is JobState.DONE else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m app.jobs.worker", allow_abbrev=False)
    parser.add_argument("--db", type=Path, required=True, help="the job table")
    parser.add_argument("--kinds", required=True, help="module that holds KINDS")
    parser.add_argument("--limit", type=int, default=1, help="see LocalRunner")
    parser.add_argument("--grace", type=float, default=5.0, help="see LocalRunner")
    parser.add_argument("--batch", action="store_true", help="started by SLURM")
    parser.add_argument("id", help="the job")
    arguments = parser.parse_args()
    if not re.fullmatch("[0-9a-f]{12}", arguments.id):
        parser.error(f"{arguments.id!r} is no job id.")
    if not all(map(str.isidentifier, arguments.kinds.split("."))):
        parser.error(f"{arguments.kinds!r} is no module name.")
    if not arguments.db.is_file():
        parser.error(f"{arguments.db} is no job table.")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
