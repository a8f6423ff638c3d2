"""Queue, cancel, retry and remove jobs from pages."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import streamlit as st

from analysis.errors import JobError, UserError
from app.errors import show_error
from app.jobs.kinds import KINDS, kind_of
from app.jobs.model import Job, JobState
from app.jobs.slurm import Runner, runner_of
from app.jobs.store import JobStore, open_store
from app.literal import literal
from app.loaded import Loaded
from app.session.data import settings, shown_checkpoint, shown_stats_dir, user
from app.session.prompts import remember_words
from app.settings import shown_path
from pruning.plan.plan import PruningPlan, fit_plan
from pruning.requests.model import ActionRequest
from pruning.spec.base import Request

Asked = TypeVar("Asked", bound=Request)
# Field of a request -> its form in a command line.
_SHOWN: Final[Mapping[str, Callable[[Any], object]]] = {
    "model": lambda value: shown_checkpoint(Path(value)),
    "source": lambda value: shown_checkpoint(Path(value)),
    "out": shown_path,
    "stats_dir": lambda _: shown_stats_dir(),
}


def job_store() -> JobStore:
    """The job table of this server."""
    return open_store(settings())


def runner() -> Runner:
    """Starts and watches jobs, on this machine or on a cluster."""
    return runner_of(settings(), job_store())


def own_model(loaded: Loaded) -> dict[str, Any]:
    """`model` and `stats_dir` of a job's request."""
    return {"model": str(loaded.model.checkpoint.path), "stats_dir": settings().stats_dir}


def shown_request(request: Asked) -> Asked:
    """The request with paths as its command line shows them."""
    values = {key: value for key, value in request if key in _SHOWN and value is not None}
    displayed: Asked = request.model_copy(
        update={key: _SHOWN[key](value) for key, value in values.items()}
    )
    return displayed


def last_export(loaded: Loaded) -> Job | None:
    """The most recently ended export of this model, finished or failed; None if there is none."""
    path = str(loaded.model.checkpoint.path)
    ended = [
        job
        for job in job_store().list(kinds=("export",))
        if job.state in (JobState.DONE, JobState.FAILED, JobState.LOST)
        and job.request.get("model") == path
    ]
    return max(ended, key=lambda job: job.finished_at or 0.0, default=None)


def has_export(loaded: Loaded, plan: PruningPlan) -> bool:
    """Whether the last export of this model is of this plan, and is where it was written."""
    job = last_export(loaded)
    result = (job.result or {}) if job and job.state is JobState.DONE else {}
    digest = fit_plan(plan.in_own_bits, loaded.model).digest
    return result.get("plan_digest") == digest and Path(result.get("out", "")).is_dir()


def active_job(loaded: Loaded, kind: str) -> Job | None:
    """The newest job of a kind that runs or waits for this model, of anybody; None without one."""
    path = str(loaded.model.checkpoint.path)
    jobs = (job for job in job_store().list(kinds=(kind,)) if not job.is_finished)
    return next((job for job in jobs if job.request.get("model") == path), None)


def queued_key(kind: str) -> str:
    """Session key of the last job of a kind queued here."""
    return f"queued.{kind}"


def queue(request: ActionRequest, about: str, command: str) -> None:
    """Queue a job, show a toast and rerun; show an error if it cannot be queued.

    The request is of a type in `KINDS`; `about` is the model, plan or folder in the title,
    `command` the equivalent command line.
    """
    name = kind_of(request)
    kind = KINDS[name]
    try:
        job = job_store().submit(
            name,
            request.model_dump(mode="json"),
            title=kind.title.format(about=about, request=request),
            command=command,
            requested_by=user() or "local",
            partials=request.partials,
        )
        runner().tick()
    except UserError as error:
        show_error(error)
        return
    st.session_state[queued_key(name)] = job.id
    remember_words(request)
    st.toast("Queued", icon=":material/schedule:")
    st.rerun()


def queued_job(kind: str, loaded: Loaded | None = None) -> Job | None:
    """The last job of a kind queued in this session; None if there is none, or it was removed.

    With `loaded`, of its model, and none if a later one of the kind is there, such as a retry.
    """
    job_id = st.session_state.get(queued_key(kind))
    try:
        job = job_store().get(job_id) if job_id else None
    except JobError:
        return None
    if job is None or loaded is None:
        return job
    path = str(loaded.model.checkpoint.path)
    # A search has its model in the recipe.
    jobs = (
        other
        for other in job_store().list(kinds=(kind,))
        if other.request.get("model", path) == path
    )
    return job if (newest := next(jobs, None)) and newest.id == job.id else None


def change_job(action: Literal["cancel", "retry", "remove"], job_id: str) -> None:
    """Callback of a job's buttons; a toast shows errors."""
    try:
        getattr(job_store(), action)(job_id, requested_by=user())
        runner().tick()
    except UserError as error:
        st.toast(literal(error), icon=":material/error:")
