"""Every kind of job that the dashboard may queue has a task, and stands where it belongs."""

import time

import pytest

from app.jobs.model import JobState
from app.jobs.store import JobStore
from app.session.job_queue import KINDS
from app.tasks.kinds import TASKS

HERE = {
    ("evaluate", "This model"): {"evaluate", "sweep"},
    ("evaluate", "Benchmarks"): {"benchmark"},
    ("evaluate", "Hidden states"): {"variance"},
    ("evaluate", "Ask both models"): {"ask"},
    ("explore", "Score and loss"): {"bins"},
    ("export", ""): {"export"},
    ("start", ""): set(TASKS),
}


def test_every_request_names_a_task():
    assert set(KINDS.values()) <= set(TASKS)
    assert len(set(KINDS.values())) == len(KINDS)


@pytest.fixture
def jobs(tmp_path):
    """One ended job of each kind."""
    store = JobStore(tmp_path / "state" / "jobs.sqlite")
    for kind in TASKS:
        request = {"out": str(tmp_path / kind)}
        job = store.submit(kind, request, title="a title", command="moeprune", requested_by="local")
        store.cancel(job.id)
    assert {job.state for job in store.list()} == {JobState.CANCELED}
    return store


@pytest.mark.parametrize("place", HERE, ids="-".join)
def test_a_page_lists_the_jobs_that_it_is_about(open_page, jobs, place):
    view, part = place
    address = {"evaluate": {"results": part}, "explore": {"tab": part}}.get(view, {})
    test = open_page(view, **address)
    listed = [text.value for text in test.text if "  a title" in text.value]
    assert {text.partition("  ")[0] for text in listed} == HERE[place]
    # None of them kept anything, searches neither.
    assert "Continue" not in {button.label for button in test.button}


@pytest.mark.parametrize(
    ("kept", "said"), [(1, "1 evaluation is kept beside"), (2, "2 evaluations are kept beside")]
)
def test_one_result_is_said_as_one(open_page, tmp_path, kept, said):
    store = JobStore(tmp_path / "state" / "jobs.sqlite")
    job = store.submit("evaluate", {}, title="a title", command="moeprune", requested_by="local")
    with store.transaction() as jobs:
        jobs.update(job.id, state=JobState.RUNNING, started_at=time.time())
    store.finish(job.id, JobState.DONE, result={"evaluations": [{}] * kept})
    test = open_page("evaluate", results="This model")
    assert any(said in text.value for text in test.text)
