"""Commands on jobs: list, show, logs, cancel."""

from dataclasses import asdict
from typing import Annotated

import typer

from app.cli.derive import command
from app.cli.help import Commands
from app.console import err, out, show_object, show_table
from app.jobs.slurm import runner_of
from app.jobs.store import JobStore, open_store
from app.settings import Settings
from pruning.option import Option

jobs = Commands("Jobs that the dashboard started.")
JobId = Annotated[str, Option("Job id, or its unique beginning.", place="JOB")]


def _store() -> JobStore:
    """The jobs, of which dead workers are recorded; looking at the queue starts nothing."""
    settings = Settings.checked()
    store = open_store(settings)
    runner_of(settings, store, starts=False).tick()
    return store


@jobs.command("list")
@command()
def list_jobs(
    *,
    limit: Annotated[int, typer.Option(help="How many jobs at most.", metavar="JOBS", min=1)] = 50,
) -> None:
    """List jobs: running ones, then the newest first.

    Example: moeprune jobs list
    """
    store = _store()
    rows = [
        (job.id, job.kind, str(job.state), f"{job.fraction:.0%}", job.title)
        for job in store.page(limit)
    ]
    if not rows:
        out.print("No jobs.")
        return
    show_table("", ("job", "kind", "state", "done", "title"), rows)
    total = sum(store.counts().values())
    if total > len(rows):
        err.print(f"{len(rows):,} of {total:,} jobs; --limit {total} shows all")


@jobs.command("show")
@command()
def show(*, job: JobId) -> None:
    """Print everything known of a job.

    Example: moeprune jobs show 1a2b
    """
    show_object(asdict(_store().get(job)))


@jobs.command("logs")
@command()
def logs(*, job: JobId, lines: Annotated[int, Option("How many lines from the end.")] = 40) -> None:
    """Print the end of a job's log.

    Example: moeprune jobs logs 1a2b --lines 100
    """
    out.print(_store().tail(job, lines))


@jobs.command("cancel")
@command()
def cancel(*, job: JobId) -> None:
    """Stop a job and remove its partial output.

    Example: moeprune jobs cancel 1a2b
    """
    _store().cancel(job)
    out.print(f"{job}: {_store().get(job).state}")
