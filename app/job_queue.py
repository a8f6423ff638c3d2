"""The dashboard's way to the job table."""

import streamlit as st

from app.data import settings
from app.jobs.model import Job
from app.jobs.places import Runner, open_store, runner_of
from app.jobs.store import JobStore
from app.task_requests import CalibrateRequest, ExportRequest, WeightsRequest


def job_store() -> JobStore:
    """The job table of this server."""
    return open_store(settings())


def runner() -> Runner:
    """Starts and watches jobs, on this machine or on a cluster."""
    return runner_of(settings(), job_store())


def user() -> str | None:
    """Who uses this session, where people log in; None where nobody does."""
    return str(getattr(st.user, "email", None) or "") or None


def submit(
    request: CalibrateRequest | WeightsRequest | ExportRequest,
    *,
    title: str,
    command: str,
    partials: tuple[str, ...] = (),
) -> Job:
    """Queue a job and start it if there is room."""
    kinds = {CalibrateRequest: "calibrate", WeightsRequest: "weights", ExportRequest: "export"}
    job = job_store().submit(
        kinds[type(request)],
        request.model_dump(mode="json"),
        title=title,
        command=command,
        requested_by=user() or "local",
        partials=partials,
    )
    runner().tick()
    return job
