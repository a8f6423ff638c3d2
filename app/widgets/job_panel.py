"""The job list: progress, time left, log, cancel, retry, result; refreshes while jobs run."""

import time
from collections.abc import Collection, Mapping
from datetime import datetime
from pathlib import Path
from typing import Final, Literal

import streamlit as st

from analysis.errors import JobError, UserError
from analysis.numbers.words import time_in_words
from app.charts.search import measure_label
from app.jobs.kinds import KINDS, told
from app.jobs.model import ACTIVE, Job, JobState
from app.loaded import Loaded
from app.session.data import user
from app.session.job_queue import change_job, job_store, queued_job, runner
from app.session.search_data import read_cached
from app.widgets.links import link_to
from app.widgets.notes import in_a_sentence, show_command
from pruning.plan.sizes import format_bytes
from pruning.search.store import RESULT_NAME, SEARCH, KnownSearch

_COLORS: Mapping[JobState, Literal["gray", "blue", "green", "red", "orange"]] = {
    JobState.QUEUED: "gray",
    JobState.RUNNING: "blue",
    JobState.DONE: "green",
    JobState.FAILED: "red",
    JobState.CANCELED: "gray",
    JobState.LOST: "orange",
}
_PER_PAGE: Final = 12


def job_panel(place: str = "") -> None:
    """Draw the jobs of this server in pages, running ones first; refreshes while one runs.

    Args:
        place: only kinds with this place in `KINDS`, and a link to the others;
            empty: all jobs.
    """
    kinds = tuple(name for name, kind in KINDS.items() if place and kind.place == place)
    st.header("Jobs", anchor=False)
    active = _is_active(job_store().counts(kinds))
    # Poll only while something can change.
    st.fragment(in_a_sentence()(_jobs), run_every=1.0 if active else None)(kinds)
    if kinds:
        link_to("start", "All jobs of this server", "list")


def own_job_part(kind: str, loaded: Loaded | None = None) -> Job | None:
    """Draw the progress of the last job of a kind of this session; the job while it is active.

    The page is drawn again when it ends. One that failed says why. With `loaded`, see `queued_job`.
    """
    job = queued_job(kind, loaded)
    if job is None or job.state is JobState.DONE:
        return None
    if job.is_finished:
        st.text(job.error or f"The job was {job.state}.")
        return None
    progress_part(job)
    return job


def progress_part(job: Job) -> None:
    """Draw the progress of a job; the page is drawn again when it ends."""
    st.fragment(in_a_sentence()(_progress), run_every=1.0)(job.id)


def _progress(job_id: str) -> None:
    runner().tick()
    try:
        job = job_store().get(job_id)
    except JobError:  # removed meanwhile
        st.rerun()
    if job.is_finished:
        st.rerun()
    st.progress(job.fraction, text=progress_text(job))


def _jobs(kinds: Collection[str]) -> None:
    runner().tick()
    counts = job_store().counts(kinds)
    if not counts:
        st.text("No jobs yet.")
        return
    was_active = st.session_state.get("jobs.active", False)
    active = _is_active(counts)
    st.session_state["jobs.active"] = active
    for job in job_store().page(_PER_PAGE, _first(counts), kinds):
        _job(job)
    if was_active and not active:
        st.rerun()  # the rest of the page may show the result


def _is_active(counts: Mapping[JobState, int]) -> bool:
    return any(state in counts for state in ACTIVE)


def _first(counts: Mapping[JobState, int]) -> int:
    """Index of the first job on this page of the list; draws the paging controls."""
    total = sum(counts.values())
    if total <= _PER_PAGE:
        return 0
    with st.container(horizontal=True, vertical_alignment="center"):
        st.text(", ".join(f"{count:,} {state}" for state, count in counts.items()))
        page = st.pagination(-(-total // _PER_PAGE), key="jobs.page")
    return _PER_PAGE * (page - 1)


def _job(job: Job) -> None:
    search, is_private = _saved_search(job), _has_words_of_others(job)
    with st.container(border=True, key=f"job-{job.id}"):
        with st.container(horizontal=True, horizontal_alignment="distribute"):
            with st.container(horizontal=True, vertical_alignment="center", width="content"):
                st.badge("stopped" if search else str(job.state), color=_COLORS[job.state])
                owner = f"  ({job.requested_by})" if user() and job.requested_by else ""
                st.text(f"{job.kind}  {'' if is_private else job.title}{owner}")
            with st.container(horizontal=True, width="content"):
                _button(job, resumes=search is not None)
        if not job.is_finished:
            st.progress(job.fraction, text=progress_text(job))
        elif job.error and not is_private:
            st.text(job.error)
        elif job.state is JobState.DONE:
            st.text(_ended_text(job, with_result=not is_private))
        if search is not None:
            best, tried = search.result.best_entry.fitness, len(search.result.entries)
            st.text(
                f"Stopped, best kept: {measure_label(search.fitness)} {best:.3f}, of {tried:,} "
                f"candidates. Plan, Searched shows {search.search_id}."
            )
        if is_private:
            return
        with st.expander("Log and command"):
            show_command(job.command)
            log = job_store().tail(job.id) or "The log is empty."
            st.code(log, language=None, height=180, wrap_lines=True)


def _has_words_of_others(job: Job) -> bool:
    """Whether the title and the command have a prompt that another user wrote."""
    return job.kind == "ask" and user() is not None and job.requested_by != user()


def _saved_search(job: Job) -> KnownSearch | None:
    """Result of a stopped search; None for other jobs."""
    if job.kind != SEARCH or job.state is not JobState.CANCELED:
        return None
    try:
        return read_cached(Path(job.request["out"]) / RESULT_NAME)
    except UserError:
        return None  # stopped before the first generation, or deleted


def progress_text(job: Job) -> str:
    """Phase, its progress, the share of the whole, and the time left of an unfinished job."""
    if job.state is JobState.QUEUED:
        return f"SLURM job {job.batch}" if job.batch else "waiting for its turn"
    seconds = job.eta_seconds(time.time())
    amount = f" {job.done:,} of {job.total:,} {job.unit}" if job.total else ""
    if job.unit == "bytes" and job.total:
        amount = f" {format_bytes(job.done)} of {format_bytes(job.total)}"
    share = f", {job.fraction:.0%}" if job.fraction else ""
    rest = f", {time_in_words(seconds)} left" if seconds is not None else ""
    # A worker reports nothing while it loads libraries.
    return f"{job.phase or 'starting'}{amount}{share}{rest}"


def _ended_text(job: Job, *, with_result: bool) -> str:
    """When a job ended, how long it took, and, where one may see it, its result."""
    seconds = (job.finished_at or 0) - (job.started_at or 0)
    when = datetime.fromtimestamp(job.finished_at or 0).astimezone().strftime("%Y-%m-%d %H:%M")
    is_known = with_result and job.kind in KINDS and job.result
    sentence = told(job.kind, job.result) if is_known and job.result else ""
    return f"{when}, {seconds:.1f} s. {sentence}".rstrip()


def _button(job: Job, *, resumes: bool) -> None:
    """The buttons of a job: cancel, retry or remove."""
    label, action, icon = "Remove", "remove", "close"
    if not job.is_finished:
        label, action, icon = "Cancel", "cancel", "stop"
    elif job.state is not JobState.DONE:
        label, action, icon = "Continue" if resumes else "Retry", "retry", "refresh"
    st.button(
        label,
        key=f"job.{action}.{job.id}",
        icon=f":material/{icon}:",
        on_click=change_job,
        args=(action, job.id),
        disabled=not job.is_finished and job.cancel_at is not None,
        type="tertiary" if action == "remove" else "secondary",
        help="Remove from this list; its output is kept." if action == "remove" else None,
    )
