"""The last export: how it is used, and its proof."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import streamlit as st

from analysis.errors import UserError
from analysis.model.moe_model import MoEModel
from analysis.model.opening import load_model_index
from app.jobs.model import JobState
from app.literal import literal
from app.loaded import CurrentPlan, Loaded
from app.session.job_queue import has_export, last_export
from app.widgets.controls import view_switch
from app.widgets.links import go_to, page_at
from app.widgets.notes import show_command
from app.widgets.report import decision_button
from pruning.plan.plan import fit_plan
from pruning.plan.sizes import format_bytes
from pruning.serving.commands import LLAMA_CPP, serve_gguf, served_by
from pruning.serving.engines import contents_of, equal_cut, load_code, verdicts
from pruning.serving.gguf import gguf_path
from pruning.surgery.padding import plan_padding

_TRANSFORMERS: Final = "transformers"


def finished_part(loaded: Loaded, current: CurrentPlan) -> bool:
    """Show the last export of this model, in full if it is of this plan; whether it is."""
    job, plan = last_export(loaded), current.plan
    if job is None:
        return False
    if job.state is not JobState.DONE:
        reason = literal(job.error or "Its worker vanished.")
        st.error(f"The export **{literal(job.title)}** failed: {reason}", icon=":material/error:")
        return False
    result = job.result or {}
    export_model = _load_export(result.get("out", ""))
    if export_model is None or not has_export(loaded, plan):
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
            _use_part(export_model, equal_cut(plan, padded=is_padded), result)
            _next_part(loaded, current)
        with proof_column:
            _proof_part(result)
    return True


def _load_export(out: str) -> MoEModel | None:
    """The exported checkpoint; None if it was moved or deleted."""
    try:
        return load_model_index(out) if out and Path(out).is_dir() else None
    except UserError:
        return None


def _use_part(export_model: MoEModel, removes: str, result: Mapping[str, Any]) -> None:
    """Folder, and how a program loads or serves the export; `removes` as `equal_cut` has it."""
    contents, out = replace(contents_of(export_model), removes=removes), result["out"]
    show_command(out)
    served = {
        engine.verdict.engine: engine
        for engine in served_by(verdicts(contents), out, export_model.dtype)
    }
    programs = (_TRANSFORMERS, *served)
    program = view_switch("Program", "program", {name: name for name in programs})
    if program == _TRANSFORMERS:
        code = load_code(export_model, contents, json.dumps(out))
        st.code(code, language="python", wrap_lines=True)
        return
    engine = served[program]
    gguf = result.get("gguf") if program == LLAMA_CPP else None
    if gguf:
        st.caption(f"Its GGUF file, {format_bytes(gguf['bytes'])}, is written.")
        show_command(serve_gguf(gguf_path(Path(out), gguf["type"])))
    else:
        st.caption(f"Of exports of this kind: {engine.note}.")
        show_command(*engine.commands)
    st.caption("While it runs, this asks it:")
    show_command(engine.request)


def _next_part(loaded: Loaded, plan: CurrentPlan) -> None:
    """What one does with an export: benchmark it, and show what was decided."""
    with st.container(horizontal=True):
        if st.button(
            "Benchmark this",
            key="export.benchmark",
            icon=":material/speed:",
            on_click=st.session_state.update,
            args=({"results": "benchmarks"},),
        ):
            go_to(page_at("evaluate"))
        decision_button(loaded, plan, "export.decision", "Decision page")


def _proof_part(result: Mapping[str, Any]) -> None:
    """All checks, equal logits first."""
    if not (verify := result.get("verify")):
        return
    checks = sorted(verify["checks"], key=lambda check: check["name"] != "logits")
    telling = next(iter(checks), {"name": "", "detail": ""})
    passed = sum(bool(check["ok"]) for check in checks)
    st.markdown(f"**Proof**: {passed} of {len(checks)} checks hold")
    st.text(f"Level {verify['level']}, {verify['reason']}")
    # In full, as the table cuts it off.
    st.text(f"{telling['name']}: {telling['detail']}")
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
