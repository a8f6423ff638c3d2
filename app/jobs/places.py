"""Where jobs run: on this machine, or on a cluster; one interface for both."""

from typing import Protocol

from app.jobs.runner import LocalRunner
from app.jobs.slurm import SlurmRunner, parse_options
from app.jobs.store import JobStore
from app.settings import Settings


class Runner(Protocol):
    """Starts queued jobs, stops canceled ones, buries dead ones."""

    def tick(self) -> None:
        """Do what is due; idempotent, and safe from several processes at once."""


def open_store(settings: Settings) -> JobStore:
    """The job table of an installation or server."""
    return JobStore(settings.jobs_db, shared=settings.slurm is not None)


def runner_of(settings: Settings, store: JobStore, *, starts: bool = True) -> Runner:
    """The runner of an installation or server; one that starts nothing still attends to the rest.

    Raises:
        JobError: options of SLURM that are none.
    """
    if settings.slurm is None:
        return LocalRunner(store) if starts else LocalRunner(store, limit=0)
    options = parse_options(settings.slurm)
    return SlurmRunner(store, options) if starts else SlurmRunner(store, options, limit=0)
