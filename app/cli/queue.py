"""Commands on jobs: list, show, logs, cancel."""

import json
from dataclasses import asdict
from typing import Annotated

import typer

from app.cli.derive import command
from app.console import err, out, show_table
from app.jobs.places import open_store, runner_of
from app.jobs.store import JobStore
from app.settings import Settings
from pruning.requests.base import Option

jobs = typer.Typer(help="Jobs that the dashboard started.", no_args_is_help=True)
JobId = Annotated[str, Option("Job id, or its unique beginning.", place="JOB")]


def _store() -> JobStore:
    store = open_store(Settings.from_environment())
    _attend(store)
    return store


def _attend(store: JobStore) -> None:
    # Room for no job: dead workers are buried, but looking at the queue starts nothing.
    runner_of(Settings.from_environment(), store, starts=False).tick()


@jobs.command("list")
@command()
def list_jobs(
    *, limit: Annotated[int, typer.Option(help="How many jobs at most.", min=1)] = 50
) -> None:
    """List jobs: running ones, then the newest first."""
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
        err.print(f"{len(rows):,} of {total:,} jobs; --limit {total} shows all", markup=False)


@jobs.command("show")
@command()
def show(*, job: JobId) -> None:
    """Print everything known of a job."""
    out.print_json(json.dumps(asdict(_store().get(job)), default=str))


@jobs.command("logs")
@command()
def logs(*, job: JobId, lines: Annotated[int, Option("How many lines from the end.")] = 40) -> None:
    """Print the end of a job's log."""
    out.print(_store().tail(job, lines), markup=False)


@jobs.command("cancel")
@command()
def cancel(*, job: JobId) -> None:
    """Stop a job and remove its partial output."""
    store = _store()
    store.cancel(job)
    _attend(store)
    out.print(f"{job}: {store.get(job).state}", markup=False)
