"""The last export: how it is used, and its proof."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import streamlit as st

from analysis.errors import UserError
from analysis.model.moe_model import MoEModel
from analysis.model.opening import load_model_index
from app.jobs.model import JobState
from app.literal import literal
from app.loaded import Loaded
from app.session.job_queue import last_export
from app.widgets.notes import show_command
from pruning.plan.plan import PruningPlan, fit_plan
from pruning.plan.sizes import format_bytes
from pruning.serving.commands import serve_commands, serve_gguf
from pruning.serving.engines import contents_of, equal_cut, load_code, verdicts
from pruning.serving.gguf import gguf_path
from pruning.surgery.padding import plan_padding


def finished_part(loaded: Loaded, plan: PruningPlan) -> bool:
    """Show the last export of this model, in full if it is of this plan; whether it is."""
    job = last_export(loaded)
    if job is None:
        return False
    if job.state is not JobState.DONE:
        reason = literal(job.error or "Its worker vanished.")
        st.error(f"The export **{literal(job.title)}** failed: {reason}", icon=":material/error:")
        return False
    result = job.result or {}
    export_model = _load_export(result.get("out", ""))
    is_this = result.get("plan_digest") == fit_plan(plan, loaded.model).digest
    if export_model is None or not is_this:
        with st.expander(f"The last export, {literal(job.title)}, is of another plan or was moved"):
            _proof_part(result)
        return False
    padding = None
    if job.request.get("pad"):
        padding = plan_padding(loaded.model, fit_plan(plan, loaded.model))
    is_padded = padding is not None and padding.experts > 0
    with st.container(border=True):
        st.markdown(f":green[:material/check_circle:] **{literal(job.title)} is written**")
        if padding and is_padded:
            st.markdown(f"It is padded with {padding.in_words}.")
        if repair := result.get("repair"):
            st.markdown(f"It is repaired, {literal(repair)}.")
        use_column, proof_column = st.columns(2, gap="large")
        with use_column:
            _use_part(export_model, equal_cut(plan, padded=is_padded), result["out"])
            if gguf := result.get("gguf"):
                show_command(
                    serve_gguf(gguf_path(Path(result["out"]), gguf["type"])),
                    heading=f"Serve its GGUF file, {format_bytes(gguf['bytes'])}",
                )
        with proof_column:
            _proof_part(result)
    return True


def _load_export(out: str) -> MoEModel | None:
    """The exported checkpoint; None if it was moved or deleted."""
    try:
        return load_model_index(out) if out and Path(out).is_dir() else None
    except UserError:
        return None


def _use_part(export_model: MoEModel, removes: str, out: str) -> None:
    """Folder, loading and serving of the export; `removes` as `equal_cut` has it."""
    contents = replace(contents_of(export_model), removes=removes)
    show_command(out)
    st.markdown("**Load it**")
    st.code(load_code(export_model, contents, json.dumps(out)), language="python", wrap_lines=True)
    if commands := serve_commands(verdicts(contents), out, export_model.dtype):
        show_command(*commands, heading="Serve it")


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
