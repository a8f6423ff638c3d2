"""The last export: its folder, how to load and serve it, its checks; or why it failed."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import streamlit as st

from analysis.errors import UserError
from analysis.model import MoEModel, load_model_index
from app.charts.context import Context
from app.frame.notes import show_command
from app.jobs.model import Job, JobState
from app.literal import literal
from app.session.job_queue import job_store
from pruning.engines import contents_of, load_code, serve_commands, verdicts
from pruning.plan import PruningPlan, fit_plan

_KIND = "export"


def last_export(context: Context) -> Job | None:
    """The most recently ended export of this model, finished or failed; None if there is none."""
    path = str(context.model.checkpoint.path)
    ended = [
        job
        for job in job_store().list(kinds=(_KIND,))
        if job.state in (JobState.DONE, JobState.FAILED, JobState.LOST)
        and job.request.get("model") == path
    ]
    return max(ended, key=lambda job: job.finished_at or 0.0, default=None)


def finished_part(context: Context, plan: PruningPlan) -> bool:
    """Show the last export of this model, in full if it is of this plan; whether it is."""
    job = last_export(context)
    if job is None:
        return False
    if job.state is not JobState.DONE:
        said = literal(job.error or "Its worker vanished.")
        st.error(f"The export **{literal(job.title)}** failed: {said}", icon=":material/error:")
        return False
    result = job.result or {}
    written = _written(result.get("out", ""))
    is_this = result.get("plan_digest") == fit_plan(plan, context.model).digest
    if written is None or not is_this:
        with st.expander(f"The last export, {literal(job.title)}, is of another plan or was moved"):
            _proof_part(result)
        return False
    with st.container(border=True):
        st.markdown(f":green[:material/check_circle:] **{literal(job.title)} is written**")
        left, right = st.columns(2, gap="large")
        with left:
            _use_part(written, result["out"])
        with right:
            _proof_part(result)
    return True


def form_place(*, is_written: bool) -> Any:
    """The container of the export form, folded if this plan is exported already."""
    if is_written:
        return st.expander("Export it again under another name")
    return st.container(border=True)


def _written(out: str) -> MoEModel | None:
    """The exported checkpoint; None if it was moved or deleted."""
    try:
        return load_model_index(out) if out and Path(out).is_dir() else None
    except UserError:
        return None


def _use_part(written: MoEModel, out: str) -> None:
    """Folder, loading and serving of the export."""
    contents = contents_of(written)
    show_command(out)
    st.markdown("**Load it**")
    st.code(load_code(written, contents, json.dumps(out)), language="python", wrap_lines=True)
    if commands := serve_commands(verdicts(contents), out):
        lines = [f"{command}  # {engine}" for engine, command in commands.items()]
        show_command(*lines, heading="Serve or convert it (untested)")
    else:
        st.text(
            "vLLM, SGLang and llama.cpp need the same number and width of experts in every layer."
        )


def _proof_part(result: Mapping[str, Any]) -> None:
    """All checks, equal logits first."""
    if not (verify := result.get("verify")):
        return
    checks = sorted(verify["checks"], key=lambda check: check["name"] != "logits")
    passed = sum(bool(check["ok"]) for check in checks)
    st.markdown(f"**Proof**: {passed} of {len(checks)} checks hold")
    st.text(f"Level {verify['level']}, {verify['reason']}")
    st.dataframe(
        {
            "check": [check["name"] for check in checks],
            "holds": [bool(check["ok"]) for check in checks],
            "result": [check["detail"] for check in checks],
        },
        hide_index=True,
        height="content",
        key="export.proof",
        alt="Every check of the export, and its result.",
    )
