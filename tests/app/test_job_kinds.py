"""Every kind of job that the dashboard may queue has a task that does it."""

from app.job_queue import KINDS
from app.tasks import TASKS


def test_every_request_names_a_task():
    assert set(KINDS.values()) <= set(TASKS)
    assert len(set(KINDS.values())) == len(KINDS)
