"""The store without any worker: rows, look-up, rights, limits."""

import contextlib
import dataclasses
import hashlib
import os
import socket
import sqlite3
import stat
import subprocess
import sys
import time

import pytest

from analysis.errors import JobError
from analysis.pace import Pace
from analysis.progress import Progress, Whole
from app.jobs.model import JobState, is_stale
from app.jobs.runner import LocalRunner
from app.jobs.store import JobStore

FAKE_TOKEN = "hf_" + "Ab3" * 11


def set_columns(store, job, **values):
    with store.transaction() as jobs:
        jobs.update(job.id, **values)


def test_submitted_job_reads_back_as_it_was_returned(store, submit, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    job = submit("count", n=3, partials=["out.partial"])
    assert store.get(job.id) == store.get(job.id[:11]) == job
    assert (job.state, job.request) == (JobState.QUEUED, {"n": 3})
    assert job.partials == (str(tmp_path / "out.partial"),)


def test_an_ambiguous_prefix_names_the_jobs(store, submit):
    with pytest.raises(JobError, match="There are no jobs yet"):
        store.get("abc")
    # 17 ids over 16 first digits: two of them must share one.
    ids = [submit("count").id for _ in range(17)]
    first = next(digit for digit in "0123456789abcdef" if sum(i[0] == digit for i in ids) > 1)
    with pytest.raises(JobError, match="Several jobs") as caught:
        store.get(first)
    assert all(i in str(caught.value) for i in ids if i[0] == first)


def test_a_queued_job_is_canceled_at_once_by_its_owner_or_an_administrator(store, submit):
    for requested_by in ("ann", None):
        job = submit("count", requested_by="ann")
        with pytest.raises(JobError, match="belongs to ann, who alone can cancel it"):
            store.cancel(job.id, requested_by="bob")
        assert store.get(job.id).state is JobState.QUEUED
        job = store.cancel(job.id, requested_by=requested_by)
        assert job.state is JobState.CANCELED
        assert job.finished_at is not None
        with pytest.raises(JobError, match="is canceled already"):
            store.cancel(job.id)


def test_retry_is_a_new_job_with_the_same_request(store, submit, tmp_path):
    old = submit("count", n=3, partials=[tmp_path / "out.partial"])
    with pytest.raises(JobError, match="only a finished job"):
        store.retry(old.id)
    old = store.cancel(old.id)
    new = store.retry(old.id)
    assert new.id != old.id
    assert new.state is JobState.QUEUED
    assert (new.kind, new.digest, new.command) == (old.kind, old.digest, old.command)
    assert (new.partials, new.requested_by) == (old.partials, "ann")
    assert store.retry(old.id, requested_by="bob").requested_by == "bob"


def test_remove_forgets_the_job_and_its_log(store, submit):
    for requested_by in ("ann", None):
        job = submit("count", requested_by="ann")
        with pytest.raises(JobError, match="cancel it before"):
            store.remove(job.id)
        job = store.cancel(job.id)
        job.log_path.write_text("said\n")
        with pytest.raises(JobError, match="belongs to ann, who alone can remove it"):
            store.remove(job.id, requested_by="bob")
        store.remove(job.id, requested_by=requested_by)
        assert store.list() == ()
        assert not job.log_path.exists()


def test_the_queue_is_limited(store, submit):
    job = submit("count")
    with store.transaction() as jobs:
        for number in range(999):
            jobs.insert(dataclasses.replace(job, id=f"{number:012x}"))
    with pytest.raises(JobError, match="1,000 jobs are queued already"):
        submit("count")
    assert len(store.list(limit=2000)) == 1000


def test_lists_are_newest_first_limited_and_of_some_kinds_and_pages_begin_with_what_runs(
    store, submit
):
    jobs = [submit(kind) for kind in ("count", "fail", "sleep", "sleep")]
    assert store.list() == tuple(reversed(jobs))
    assert store.list(limit=1) == (jobs[3],)
    assert store.list(limit=2, kinds=("count", "fail")) == (jobs[1], jobs[0])
    assert store.list(kinds=("count' OR '1'='1",)) == ()
    set_columns(store, jobs[0], state=JobState.RUNNING)
    ids = [job.id for job in jobs]
    assert [job.id for job in store.page(2)] == [ids[0], ids[3]]
    assert [job.id for job in store.page(2, 2)] == [ids[2], ids[1]]
    assert store.page(2, 4) == ()
    assert [job.id for job in store.page(9, kinds=("fail",))] == [ids[1]]
    assert store.counts() == {JobState.QUEUED: 3, JobState.RUNNING: 1}
    assert store.counts(("fail",)) == {JobState.QUEUED: 1}
    assert store.counts(("nothing",)) == {}


@pytest.mark.parametrize("place", ["request", "title", "command"])
def test_a_token_in_the_request_is_refused(store, place):
    values = {"request": {"model": "a/b"}, "title": "t", "command": "moeprune"}
    values[place] = {"token": FAKE_TOKEN} if place == "request" else FAKE_TOKEN
    with pytest.raises(JobError, match="HF_TOKEN") as caught:
        store.submit("count", **values, requested_by="ann")
    assert FAKE_TOKEN not in str(caught.value)
    assert store.list() == ()


def test_folders_and_files_are_private(store, submit):
    submit("count")
    with store.transaction():
        files = [path for path in store.path.parent.iterdir() if path.is_file()]
        assert store.path.with_name("jobs.sqlite-wal") in files
        assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    for folder in (store.path.parent, store.log_dir):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.parametrize("version", [1, 7])
def test_a_table_of_another_program_is_refused(store, version):
    connection = sqlite3.connect(store.path)
    connection.execute(f"PRAGMA user_version = {version}")
    connection.close()
    with pytest.raises(JobError, match=f"schema {version}; this program reads 3"):
        JobStore(store.path)


def test_a_file_that_is_no_table_and_a_deleted_one_are_refused(store, tmp_path):
    path = tmp_path / "jobs.sqlite"
    path.write_text("nothing that SQLite knows" * 100)
    with pytest.raises(JobError, match="cannot be used"):
        JobStore(path)
    store.path.unlink()
    with pytest.raises(JobError, match="cannot be used"):
        store.list()
    assert not store.path.exists()  # no new empty one


def test_a_failed_transaction_changes_nothing(store, submit):
    job = submit("count")
    with pytest.raises(ZeroDivisionError), store.transaction() as jobs:
        jobs.update(job.id, title="changed")
        _ = 1 / 0
    assert store.get(job.id) == job


def test_tail_gives_the_last_lines_redacted(store, submit):
    job = submit("count")
    assert store.tail(job.id) == ""
    job.log_path.mkdir()
    assert store.tail(job.id) == ""
    job.log_path.rmdir()
    job.log_path.write_text(f"one\nbar 1%\rbar 99%\n{FAKE_TOKEN} three\n")
    assert store.tail(job.id, lines=2) == "bar 99%\nhf_[redacted] three"
    # Of a long one the end is read.
    job.log_path.write_text("".join(f"line {number}\n" for number in range(100_000)))
    assert store.tail(job.id, lines=2) == "line 99998\nline 99999"


def test_reports_say_how_far_the_whole_job_is(store, submit):
    job, seconds = submit("count"), [100.0]
    set_columns(store, job, state=JobState.RUNNING)
    pace = Pace(lambda: seconds[0])

    def report(done, at, **more):
        seconds[0] = at
        step = Progress("counting", done, 100, at="layer 2", **more)
        pace.take(step)
        store.report(job.id, step, pace)
        return store.get(job.id)

    # A task that does not say is as far as its phase, and nobody knows how long it takes.
    phase_alone = report(30, 100)
    assert (job.fraction, phase_alone.fraction) == (0.0, 0.3)
    assert phase_alone.eta_seconds(time.time()) is None
    total, before = {"a": 200.0}, {"a": 80.0}
    resumed = report(40, 100, whole=Whole(total, before, before))
    assert (resumed.phase, resumed.fraction) == ("counting layer 2", 0.4)
    assert resumed.eta_seconds(time.time()) is None
    # 20 of the 120 that are left took 5 s, so the rest takes 25 s, of which 3 s have gone by.
    later = report(50, 105, whole=Whole(total, {"a": 100.0}, before))
    assert later.fraction == 0.5
    assert later.eta_seconds(later.progress_at + 3) == pytest.approx(22)
    assert later.eta_seconds(later.progress_at + 30) == 0
    done = dataclasses.replace(later, state=JobState.DONE)
    assert (done.fraction, done.eta_seconds(0)) == (1.0, None)


def test_a_table_of_the_last_version_is_kept_and_its_jobs_run_on(store, submit):
    """As 0.1.0 made it, with a job that a worker of 0.1.0 runs, which knows only its columns."""
    job = submit("count")
    new = "share REAL, seconds_left REAL"
    old = "phase_started_at REAL, phase_start_done INTEGER NOT NULL"
    with contextlib.closing(sqlite3.connect(store.path, isolation_level=None)) as connection:
        run = connection.execute
        (made,) = run("SELECT sql FROM sqlite_master WHERE name = 'jobs'").fetchone()
        assert made.count(new) == 1
        names = [row[1] for row in run("PRAGMA table_info(jobs)")]
        before = ", ".join(name for name in names if name not in ("share", "seconds_left"))
        run("ALTER TABLE jobs RENAME TO saved")
        run(made.replace(new, old))
        run(f"INSERT INTO jobs ({before}, phase_start_done) SELECT {before}, 3 FROM saved")  # noqa: S608
        run("DROP TABLE saved")
        run("PRAGMA user_version = 2")
        run("UPDATE jobs SET state = 'running'")

        again = JobStore(store.path)
        assert again.get(job.id) == dataclasses.replace(job, state=JobState.RUNNING)

        # What 0.1.0 does: a report, a look-up, a submission, and the end.
        run(
            "UPDATE jobs SET phase = 'counting', done = 4, phase_started_at = 9.5, "
            "phase_start_done = 4, progress_at = 9.5 WHERE id = ?",
            (job.id,),
        )
        columns = f"{before}, phase_started_at, phase_start_done"
        row = run(f"SELECT {columns} FROM jobs WHERE id = ?", (job.id,)).fetchone()  # noqa: S608
        assert row[-2:] == (9.5, 4)
        other = {**dict(zip(columns.split(", "), row, strict=True)), "seq": 99, "id": "e" * 12}
        marks = ", ".join("?" for _ in other)
        run(f"INSERT INTO jobs ({columns}) VALUES ({marks})", tuple(other.values()))  # noqa: S608
        run("UPDATE jobs SET state = 'done', finished_at = 12.5 WHERE id = ?", (job.id,))
    ended = again.get(job.id)
    assert (ended.state, ended.done, ended.finished_at) == (JobState.DONE, 4, 12.5)
    assert (ended.share, ended.seconds_left) == (None, None)
    newest = again.submit("count", {}, "", "", "ann")
    assert [listed.id for listed in again.list()] == [newest.id, "e" * 12, job.id]


def test_a_silent_job_of_another_host_is_left_alone_until_it_is_canceled(store, submit):
    silent, heard = submit("count"), submit("count")
    # The number of a process that lives here, which must not matter.
    columns = {"state": JobState.RUNNING, "host": "elsewhere", "pid": os.getpid()}
    for job, heartbeat_at in ((silent, 1000.0), (heard, time.time())):
        set_columns(store, job, heartbeat_at=heartbeat_at, process_start=1.0, **columns)
    silent = store.get(silent.id)
    assert not is_stale(silent, now=1029.0)
    assert is_stale(silent, now=1031.0)
    LocalRunner(store, limit=0).tick()
    assert store.get(silent.id) == silent
    ended = store.cancel(silent.id)
    assert ended.state is JobState.CANCELED
    assert "elsewhere no longer reported" in ended.error
    # The worker that is heard of finds the cancel in its row, and the first time counts.
    asked = store.cancel(heard.id)
    assert asked.state is JobState.RUNNING
    assert asked.cancel_at is not None
    assert store.cancel(heard.id).cancel_at == asked.cancel_at


def test_only_the_worker_that_the_row_names_gets_the_job(store, submit):
    job = submit("count")
    set_columns(store, job, state=JobState.RUNNING, host=socket.gethostname(), pid=os.getpid() + 1)
    with pytest.raises(JobError, match="not held by this worker"):
        store.claim(job.id)
    set_columns(store, job, pid=os.getpid())
    assert store.claim(job.id).id == job.id


def test_an_end_is_recorded_once(store, submit):
    job = submit("count")
    set_columns(store, job, state=JobState.LOST, error="vanished")
    ended = store.finish(job.id, JobState.DONE, result={"late": True})
    assert (ended.state, ended.error, ended.result) == (JobState.LOST, "vanished", None)


def test_digest_is_of_the_request_as_json_whatever_its_order(submit):
    job = submit("count", b=1, a=2)
    assert job.digest == submit("count", a=2, b=1).digest
    assert job.digest == hashlib.sha256(b'{"a":2,"b":1}').hexdigest()
    with pytest.raises(ValueError, match="JSON"):
        submit("count", n=float("nan"))


@pytest.mark.parametrize("wrong", ["", "zz", "%", "0" * 13, "../etc"])
def test_an_unknown_id_is_answered_with_the_recent_ones(store, submit, wrong):
    job = submit("count")
    with pytest.raises(JobError, match=f"The last ones are: {job.id}"):
        store.get(wrong)


def test_several_processes_may_be_the_first(tmp_path):
    path = tmp_path / "state" / "jobs.sqlite"
    script = (
        "import sys; from pathlib import Path; from app.jobs.store import JobStore\n"
        "sys.stdin.read(1)\n"
        "for n in range(5): JobStore(Path(sys.argv[1])).submit('count', {}, 't', 'c', 'ann')\n"
    )
    command = [sys.executable, "-c", script, str(path)]
    processes = [subprocess.Popen(command, stdin=subprocess.PIPE) for _ in range(3)]
    for process in processes:
        process.stdin.write(b"\n")
        process.stdin.close()
    assert [process.wait(timeout=20) for process in processes] == [0, 0, 0]
    assert len(JobStore(path).list()) == 15
