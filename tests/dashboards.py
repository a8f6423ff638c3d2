"""The dashboard of a test: a server with folders of its own, which is killed and started again."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil
from servers import Server, an_unused_port, start_server

from app.jobs.model import JobState
from app.jobs.process import signal_worker
from app.jobs.store import JobStore


@dataclass
class Dashboard:
    """A server with folders of its own; it can be killed and started again."""

    root: Path
    port: int = field(default_factory=an_unused_port)
    server: Server | None = None
    models: Path | None = None  # whose checkpoints it offers

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def exports(self) -> Path:
        return self.root / "exports"

    @property
    def jobs(self) -> JobStore:
        return JobStore(self.root / "state" / "jobs.sqlite")

    def start(self) -> None:
        folders = {"MOEPRUNE_STATE_DIR": "state", "XDG_CACHE_HOME": "cache"}
        environment = {
            **os.environ,
            **{name: str(self.root / folder) for name, folder in folders.items()},
            "OMP_NUM_THREADS": "1",
        }
        (self.root / "stats").mkdir(exist_ok=True)
        self.server = start_server(
            [
                *("app", "--port", self.port, "--stats-dir", "stats"),
                *("--export-root", "exports"),
                *(("--models-root", self.models) if self.models else ()),
            ],
            log=self.root / "server.log",
            environment=environment,
            cwd=self.root,
        )

    def kill(self) -> None:
        assert self.server is not None
        os.kill(self.server.process.pid, signal.SIGKILL)
        self.server.process.wait()

    def loaded_libraries(self) -> set[str]:
        assert self.server is not None
        maps = psutil.Process(self.server.process.pid).memory_maps()
        return {Path(part.path).name for part in maps}

    def stop(self) -> None:
        if self.server is not None and self.server.process.poll() is None:
            self.server.stop()
        for job in self.jobs.list():
            if job.state is JobState.RUNNING:
                signal_worker(replace(job), signal.SIGKILL)


@contextmanager
def running(dashboard: Dashboard) -> Iterator[Dashboard]:
    """Start its server; in the end stop that and the jobs that still run."""
    try:
        dashboard.start()
        yield dashboard
    finally:
        dashboard.stop()
