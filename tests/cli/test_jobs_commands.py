"""jobs: list, show, logs, cancel, on the table that the dashboard uses."""

import json

import pytest

from app.jobs.store import JobStore


@pytest.fixture
def store(here, tmp_path):
    return JobStore(tmp_path / "state" / "jobs.sqlite")


@pytest.fixture
def job(store):
    """A job that has ended, with a log."""
    job = store.submit("export", {"out": "half"}, "half", "moeprune export x half", "ann")
    store.cancel(job.id)
    job.log_path.write_text("".join(f"line {n}\n" for n in range(60)))
    return job


def test_list_of_nothing(works):
    assert works("jobs", "list") == "No jobs.\n"


def test_list_shows_kind_state_and_title(works, job):
    row = next(line for line in works("jobs", "list").splitlines() if job.id in line)
    assert [cell.strip() for cell in row.split("│")] == [job.id, "export", "canceled", "0%", "half"]


def test_list_is_as_long_as_was_asked_for_and_says_what_is_left_out(moeprune, store):
    ids = [store.submit("export", {}, "x", "moeprune export", "ann").id for _ in range(3)]
    shown = moeprune("jobs", "list", "--limit", 2)
    assert [job_id in shown.out for job_id in ids] == [False, True, True]
    assert shown.err == "2 of 3 jobs; --limit 3 shows all\n"
    assert moeprune("jobs", "list").err == ""


def test_show_is_json_and_takes_the_beginning_of_an_id(works, job):
    raw = json.loads(works("jobs", "show", job.id[:6]))
    assert raw["id"] == job.id
    assert raw["request"] == {"out": "half"}


def test_logs_prints_the_end(works, job):
    assert works("jobs", "logs", job.id, "--lines", 2) == "line 58\nline 59\n"


def test_cancel_of_an_ended_job_is_refused(moeprune, job):
    outcome = moeprune("jobs", "cancel", job.id)
    assert outcome.code == 1
    assert "canceled already" in outcome.err


def test_looking_at_the_queue_starts_nothing(works, store):
    job = store.submit("export", {"out": "half"}, "half", "moeprune export x half", "ann")
    for words in (("list",), ("show", job.id), ("logs", job.id)):
        works("jobs", *words)
    assert store.get(job.id).state == "queued"
    works("jobs", "cancel", job.id)
    assert store.get(job.id).state == "canceled"
