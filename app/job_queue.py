"""The dashboard's way to the job table."""

import streamlit as st

from app.data import settings
from app.jobs.model import Job
from app.jobs.runner import LocalRunner
from app.jobs.store import JobStore
from app.task_requests import CalibrateRequest, ExportRequest, WeightsRequest


def job_store() -> JobStore:
    """The job table of this server."""
    return JobStore(settings().jobs_db)


def runner() -> LocalRunner:
    """Starts and watches jobs on this machine."""
    return LocalRunner(job_store())


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
        requested_by=str(getattr(st.user, "email", None) or "local"),
        partials=partials,
    )
    runner().tick()
    return job
