"""The list of jobs: progress, time left, log, cancel, retry, result; alive while jobs run."""

import time
from collections.abc import Collection, Mapping
from datetime import datetime
from pathlib import Path
from typing import Final, Literal

import streamlit as st

from analysis.errors import UserError
from app.jobs.model import ACTIVE, Job, JobState
from app.literal import literal
from app.plots.benchmarks import way_of
from app.plots.search import measure_label
from app.session.job_queue import job_store, runner, user
from app.session.search_data import read_cached
from pruning.search.result import RESULT_NAME
from pruning.search.store import SEARCH, KnownSearch
from pruning.sizes import format_bytes

_COLORS: Mapping[JobState, Literal["gray", "blue", "green", "red", "orange"]] = {
    JobState.QUEUED: "gray",
    JobState.RUNNING: "blue",
    JobState.DONE: "green",
    JobState.FAILED: "red",
    JobState.CANCELED: "gray",
    JobState.LOST: "orange",
}
_SHOWN: Final = 12


def job_panel(kinds: Collection[str] = ()) -> None:
    """Draw the jobs of this server by pages: running ones, then the newest; alive while one is.

    Args:
        kinds: what the page is about, names in `app.tasks.kinds.TASKS`; without any, all. A link
            leads to the other jobs.
    """
    st.subheader("Jobs")
    active = _is_active(job_store().counts(kinds))
    # Polling stops when nothing can change.
    st.fragment(_jobs, run_every=1.0 if active else None)(tuple(kinds))
    if kinds:
        st.page_link("views/start.py", label="All jobs of this server", icon=":material/list:")


def _jobs(kinds: Collection[str]) -> None:
    runner().tick()
    counts = job_store().counts(kinds)
    if not counts:
        st.text("No jobs yet. What is queued here appears below and survives a reload.")
        return
    was_active = st.session_state.get("jobs.active", False)
    active = _is_active(counts)
    st.session_state["jobs.active"] = active
    for job in job_store().page(_SHOWN, _first(counts), kinds):
        _job(job)
    if was_active and not active:
        st.rerun()  # the rest of the page may show the result


def _is_active(counts: Mapping[JobState, int]) -> bool:
    return any(state in counts for state in ACTIVE)


def _first(counts: Mapping[JobState, int]) -> int:
    """Which job the page of the list begins with; where there are several, draw its controls."""
    total = sum(counts.values())
    if total <= _SHOWN:
        return 0
    with st.container(horizontal=True, vertical_alignment="center"):
        st.text(", ".join(f"{count:,} {state}" for state, count in counts.items()))
        page = st.pagination(-(-total // _SHOWN), key="jobs.page")
    return _SHOWN * (page - 1)


def _job(job: Job) -> None:
    kept = _kept_search(job)
    with st.container(border=True, key=f"job-{job.id}"):
        with st.container(horizontal=True, horizontal_alignment="distribute"):
            with st.container(horizontal=True, vertical_alignment="center", width="content"):
                st.badge("stopped" if kept else str(job.state), color=_COLORS[job.state])
                owner = f"  ({job.requested_by})" if user() and job.requested_by else ""
                st.text(f"{job.kind}  {job.title}{owner}")
            with st.container(horizontal=True, width="content"):
                _buttons(job, goes_on=kept is not None)
        if not job.is_finished:
            st.progress(job.fraction, text=progress_text(job))
        elif job.error:
            st.text(job.error)
        elif job.state is JobState.DONE:
            st.text(_result_text(job))
        if kept is not None:
            st.text(_kept_text(kept))
        with st.expander("Log and command"):
            st.code(job.command, language=None, wrap_lines=True)
            log = job_store().tail(job.id) or "The log is empty."
            st.code(log, language=None, height=180, wrap_lines=True)


def _kept_search(job: Job) -> KnownSearch | None:
    """What a search that was stopped found until then; None of other jobs."""
    if job.kind != SEARCH or job.state is not JobState.CANCELED:
        return None
    try:
        return read_cached(Path(job.request["out"]) / RESULT_NAME)
    except UserError:
        return None  # stopped before the first generation, or removed since


def _kept_text(search: KnownSearch) -> str:
    best, tried = search.result.best_entry.fitness or 0.0, len(search.result.entries)
    return (
        f"Stopped, best kept: {measure_label(search.fitness)} {best:.3f}, of {tried:,} candidates. "
        f"Plan, Searched shows {search.search_id}."
    )


def progress_text(job: Job) -> str:
    """Phase of a job that is not finished, how far it is, and the time left."""
    if job.state is JobState.QUEUED:
        return f"SLURM has it as job {job.batch}" if job.batch else "waiting for its turn"
    left = job.eta_seconds(time.time())
    amount = f" {job.done:,} of {job.total:,} {job.unit}" if job.total else ""
    if job.unit == "bytes" and job.total:
        amount = f" {format_bytes(job.done)} of {format_bytes(job.total)}"
    rest = f", {int(left) // 60}:{int(left) % 60:02d} left" if left is not None else ""
    # A worker says nothing while it loads libraries.
    return f"{job.phase or 'starting'}{amount}{rest}"


def _kept(count: int, what: str, of: str = "") -> str:
    return f"1 {what}{of} is kept" if count == 1 else f"{count:,} {what}s{of} are kept"


def _result_text(job: Job) -> str:
    seconds = (job.finished_at or 0) - (job.started_at or 0)
    result = job.result or {}
    when = datetime.fromtimestamp(job.finished_at or 0).astimezone().strftime("%Y-%m-%d %H:%M")
    text = f"{when}, {seconds:.1f} s"
    if "run_id" in result:
        return f"{text}. Statistics {result['run_id']} are in the cache."
    if "evaluations" in result:
        return f"{text}. {_kept(len(result['evaluations']), 'evaluation')} beside the statistics."
    if "bins" in result:
        return f"{text}. {result['bins']} is kept beside the statistics."
    if "fitness" in result:
        return f"{text}. The best of {result['candidates']} candidates has {result['fitness']:.4f}."
    if benchmarks := result.get("benchmarks"):
        ways = {way_of(each["source"], each.get("settings", {})) for each in benchmarks}
        names = f"{len(benchmarks)} candidate{'s' if len(benchmarks) > 1 else ''}"
        return f"{text}. Scores of {names} are under Evaluate, Benchmarks: {'; '.join(ways)}."
    if "variances" in result:
        return f"{text}. {_kept(len(result['variances']), 'record', ' of hidden states')}."
    if "answers" in result:
        return f"{text}. The answers are under Evaluate, Ask both models."
    verify = result.get("verify")
    if verify:
        passed = sum(bool(check["ok"]) for check in verify["checks"])
        text += f". Verified at level {verify['level']}: {passed} of {len(verify['checks'])} checks"
        if verify.get("max_abs_diff") is not None:
            text += (
                f", largest logit difference to the masked original {verify['max_abs_diff']:.2g}"
            )
    return f"{text}. Written to {result.get('out', '?')}"


def _buttons(job: Job, *, goes_on: bool) -> None:
    if not job.is_finished:
        st.button(
            "Cancel",
            key=f"job.cancel.{job.id}",
            icon=":material/stop:",
            on_click=_act,
            args=("cancel", job.id),
            disabled=job.cancel_at is not None,
        )
    elif job.state is not JobState.DONE:
        st.button(
            "Continue" if goes_on else "Retry",
            key=f"job.retry.{job.id}",
            icon=":material/refresh:",
            on_click=_act,
            args=("retry", job.id),
        )
    else:
        st.button(
            "Remove",
            key=f"job.remove.{job.id}",
            icon=":material/close:",
            on_click=_act,
            args=("remove", job.id),
            type="tertiary",
            help="Remove from this list; what it wrote stays.",
        )


def _act(action: str, job_id: str) -> None:
    store = job_store()
    try:
        if action == "cancel":
            store.cancel(job_id, requested_by=user())
        elif action == "retry":
            store.retry(job_id, requested_by=user())
        else:
            store.remove(job_id, requested_by=user())
        runner().tick()
    except UserError as error:
        st.toast(literal(error), icon=":material/error:")
