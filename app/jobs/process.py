"""Processes: liveness of workers, stop signals, leftover output."""

import contextlib
import logging
import os
import shutil
import signal
import socket
from pathlib import Path

import psutil

from app.jobs.model import Job


def start_time(pid: int) -> float:
    """When the process was started, in seconds; 0 when it is gone.

    On Linux since boot: psutil adds the wall-clock boot time, so that a clock change
    would shift every start time.
    """
    try:
        # Fields counted after the program name.
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (FileNotFoundError, ProcessLookupError):
        pass
    try:
        return 0.0 if Path("/proc/self/stat").exists() else psutil.Process(pid).create_time()
    except psutil.NoSuchProcess:
        return 0.0


def is_alive(job: Job) -> bool:
    """Whether the job's worker runs on this host; a zombie does not."""
    if job.pid is None or job.host != socket.gethostname():
        return False
    try:
        process = psutil.Process(job.pid)
        return _is_worker(process, job) and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        # Gone, or hidden from this user and so not our worker.
        return False


def signal_worker(job: Job, number: signal.Signals) -> None:
    """Signal the job's worker and its children; nothing when it no longer runs here."""
    if job.pid is None or not is_alive(job):
        return
    # It leads its own session, so its pid is also its group id. The group may end at any
    # moment, this one included; macOS says "not permitted" when only zombies are left.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(job.pid, number)


def kill_orphans(job: Job) -> None:
    """Kill children of a dead worker, which may hold memory or a GPU.

    They share the worker's session id. The kernel does not reuse that
    id while the session lives, so if a process has it as its pid again, there are no orphans.
    """
    if job.pid is None or job.process_start is None or job.host != socket.gethostname():
        return
    # Before the last boot, the id was another session's.
    if (job.started_at or 0.0) < psutil.boot_time():
        return
    try:
        if not _is_worker(psutil.Process(job.pid), job):
            return
    except psutil.AccessDenied:
        return
    except psutil.NoSuchProcess:
        pass
    for pid in psutil.pids():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getsid(pid) == job.pid:
                os.kill(pid, signal.SIGKILL)


def _is_worker(process: psutil.Process, job: Job) -> bool:
    if job.process_start is None:
        return False
    # Shorter than any pid reuse.
    return abs(start_time(process.pid) - job.process_start) <= 0.5


def peak_memory() -> int:
    """Largest resident memory of this process so far, in bytes; the current one off Linux.

    Not `ru_maxrss`: Linux carries that over from the process that started this one.
    """
    with contextlib.suppress(FileNotFoundError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return int(psutil.Process().memory_info().rss)


def last_memory(job: Job) -> str:
    """The last reported memory of the job's worker, in words."""
    return f"last memory {format_memory(job.rss_peak)}" if job.rss_peak else "at its start"


def format_memory(size: int) -> str:
    """Bytes in words: "512 MiB", "1.2 GiB"."""
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"


logger = logging.getLogger(__name__)


def delete_partials(job: Job, error: str) -> str:
    """Delete the job's unfinished output; `error`, with the paths that could not be deleted.

    Only paths whose last part contains ".partial": whatever a request says, finished output is
    never deleted here. Links are removed, not their targets.
    """
    undeleted = ", ".join(path for path in job.partials if not _delete(Path(path)))
    return f"{error} Not deleted: {undeleted}.".lstrip() if undeleted else error


def _delete(path: Path) -> bool:
    if ".partial" not in path.name:
        logger.warning("Not deleted, the name has no '.partial': %s", path)
        return True
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    except OSError:
        logger.exception("Cannot delete %s", path)
        return False
    return True
