"""The dashboard's way to the job table."""

from collections.abc import Mapping
from typing import Final

import streamlit as st

from app.jobs.model import Job
from app.jobs.places import Runner, open_store, runner_of
from app.jobs.store import JobStore
from app.session.data import settings
from pruning.requests.base import CalibrateRequest, ExportRequest, Request, WeightsRequest
from pruning.requests.benchmark import BenchmarkRequest
from pruning.requests.evaluation import AskRequest, BinsRequest, EvaluateRequest, SweepRequest
from pruning.requests.search import SearchRequest
from pruning.requests.variance import VarianceRequest

# What may be asked for as a job -> its kind, a name in `app.tasks.kinds.TASKS`.
KINDS: Final[Mapping[type[Request], str]] = {
    CalibrateRequest: "calibrate",
    WeightsRequest: "weights",
    ExportRequest: "export",
    EvaluateRequest: "evaluate",
    SweepRequest: "sweep",
    BinsRequest: "bins",
    BenchmarkRequest: "benchmark",
    VarianceRequest: "variance",
    AskRequest: "ask",
    SearchRequest: "search",
}


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
    request: Request,
    *,
    title: str,
    command: str,
    partials: tuple[str, ...] = (),
) -> Job:
    """Queue a job and start it if there is room; `request` is of a type of `KINDS`."""
    job = job_store().submit(
        KINDS[type(request)],
        request.model_dump(mode="json"),
        title=title,
        command=command,
        requested_by=user() or "local",
        partials=partials,
    )
    runner().tick()
    return job
