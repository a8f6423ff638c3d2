"""Where jobs run: on this machine, or on a cluster; one interface for both."""

from dataclasses import replace
from typing import Protocol

from app.jobs.runner import LocalRunner
from app.jobs.slurm import SlurmRunner, parse_options
from app.jobs.store import JobStore
from app.settings import Settings


class Runner(Protocol):
    """Starts queued jobs, stops canceled ones, records the end of lost ones."""

    def tick(self) -> None:
        """Do what is due; idempotent, and safe from several processes at once."""


def open_store(settings: Settings) -> JobStore:
    """The job table of an installation or server."""
    return JobStore(settings.jobs_db, shared=settings.slurm is not None)


def runner_of(settings: Settings, store: JobStore, *, starts: bool = True) -> Runner:
    """The runner of an installation or server; without `starts`, it starts no job."""
    if settings.slurm is None:
        return LocalRunner(store) if starts else LocalRunner(store, limit=0)
    runner = SlurmRunner(store, parse_options(settings.slurm))
    return runner if starts else replace(runner, limit=0)
