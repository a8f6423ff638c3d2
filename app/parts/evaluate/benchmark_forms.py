"""Evaluate, benchmarks: forms to queue a run and to import results."""

import tempfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import streamlit as st

from analysis.demo.tasks import LOCAL_TASKS
from analysis.errors import UserError
from analysis.model import DEMO_MODEL
from app.charts.context import Context
from app.frame.controls import one_of
from app.frame.job_form import offer_job
from app.frame.notes import inform, show_command
from app.literal import literal
from app.parts.evaluate.sweep_fields import DTYPES, dtype_field
from app.session import data
from app.session.job_queue import own_model
from pruning.planning.make import CurrentPlan
from pruning.requests.base import command_line, validated
from pruning.requests.benchmark import BenchmarkRequest, ImportRequest
from pruning.surgery.manifest import MANIFEST_NAME, read_manifest
from pruning.tasks.benchmark import import_results

_FULL, _PLAN, _EXPORT, _WORDS = "full", "plan", "export", "words"
_MEGABYTES: Final = 16
TAKEN_IN: Final = "bench.taken"  # session key: records to show next
_RAN: Final = {
    _FULL: "The original model",
    _PLAN: "Your plan (masked in memory)",
    _EXPORT: "An export",
}
_TAKEN: Final = {_FULL: "The original model", _PLAN: "Your plan", _WORDS: "Other (describe)"}
_NO_HARNESS: Final = (
    "lm-evaluation-harness is not installed on this server: "
    "`pip install 'moe-prune-studio[eval]'`. Results of other tools can be imported."
)


def run_form(context: Context, dtype: str) -> None:
    """Form that queues benchmarks of the original model, a plan or an export."""
    st.markdown("**Run benchmarks** with lm-evaluation-harness.")
    if find_spec("lm_eval") is None:
        inform(_NO_HARNESS)
        return
    what, shown = _candidate(context, "bench.run", _RAN)
    values = {**own_model(context), **_tasks(context, dtype)}
    about = context.model.name if shown is None else shown.name
    if what == _EXPORT:
        exports = exports_of(context)
        if not exports:
            st.text("No exports of this model in the export folder yet.")
            return
        name = st.selectbox("Export", list(exports), key="bench.run.export", format_func=literal)
        values |= {"model": str(exports[name]), "source": own_model(context)["model"]}
        about = exports[name].name
    elif what == _PLAN:
        if shown is None:
            return
        values["plans"] = (shown.plan.to_dict(),)
    if not values["tasks"]:
        st.text("Enter at least one task.")
        return
    request: BenchmarkRequest = validated(BenchmarkRequest, values)
    sent = st.button(
        "Run benchmarks", icon=":material/play_arrow:", type="primary", key="bench.run.send"
    )
    offer_job(context, request, about, sent=sent, plan=shown)


def _candidate(
    context: Context, prefix: str, offers: Mapping[str, str]
) -> tuple[str, CurrentPlan | None]:
    """Draw the choice of candidate: one of `offers`, and its plan if it is a plan."""
    chosen = st.segmented_control(
        "Candidate",
        list(offers),
        default=_FULL,
        required=True,
        key=f"{prefix}.what",
        format_func=lambda name: offers[name],
    )
    what = one_of(chosen, list(offers), _FULL)
    return what, context.shown if what == _PLAN else None


def _tasks(context: Context, dtype: str) -> dict[str, Any]:
    """Draw tasks, question limit and dtype; return request fields."""
    local: list[str] = []
    if context.model.name == DEMO_MODEL:
        local = st.multiselect(
            "Offline tasks",
            list(LOCAL_TASKS),
            default=list(LOCAL_TASKS),
            key="bench.run.local",
            help="Built from the demo's corpora.",
        )
    with st.container(horizontal=True, vertical_alignment="bottom"):
        named = st.text_input(
            "Tasks from the hub",
            key="bench.run.tasks",
            max_chars=2000,
            placeholder="e.g. arc_challenge,piqa",
            help="Task or group names of lm-evaluation-harness, comma-separated; needs network "
            "access.",
            width=280,
        )
        limit = st.number_input(
            "Max questions per task",
            min_value=1,
            max_value=10**6,
            value=None,
            key="bench.run.limit",
            placeholder="all",
            width=220,
        )
        chosen = dtype_field(
            dtype,
            # A new key for other results resets the default to their dtype.
            f"bench.run.dtype.{one_of(dtype, DTYPES)}",
            "Only results of the same dtype are compared; auto uses the checkpoint's.",
        )
    tasks = ",".join(filter(None, (*local, named.strip())))
    return {"tasks": tasks, "limit": limit, "dtype": chosen}


def exports_of(context: Context) -> dict[str, Path]:
    """Exports of this model below the export root: name -> folder."""
    found = {}
    for manifest in sorted(data.settings().export_root.glob(f"*/{MANIFEST_NAME}")):
        try:
            source = read_manifest(manifest.parent).source
        except UserError:
            continue  # the Export page reports it
        if source.identity == context.model.identity and not manifest.parent.is_symlink():
            found[manifest.parent.name] = manifest.parent
    return found


def import_form(context: Context) -> None:
    """Import a results file of lm-evaluation-harness or EvalScope."""
    st.markdown("**Import** a results file of lm-evaluation-harness or EvalScope.")
    what, shown = _candidate(context, "bench.import", _TAKEN)
    words = ""
    if what == _WORDS:
        words = st.text_input("What was benchmarked", key="bench.import.words", max_chars=200)
    file = st.file_uploader(
        "Results", type=["json"], key="bench.import.file", max_upload_size=_MEGABYTES
    )
    if (what == _PLAN and shown is None) or (what == _WORDS and not words.strip()):
        return
    plan = None if shown is None else shown.plan.to_dict()
    asked = {**own_model(context), "candidate": words.strip(), "plan": plan}
    sends = st.button("Import", icon=":material/upload:", key="bench.import.send")
    if sends and file is not None:
        _take(asked, Path(file.name).name, file.getvalue())
    elif sends:
        st.text("Choose a file first.")
    show_command(_import_command(context, shown, asked))


def _take(asked: Mapping[str, Any], name: str, content: bytes) -> None:
    try:
        records = take_results(asked, name, content)
    except UserError as error:
        st.error(literal(error), icon=":material/error:")
        return
    scores = sum(len(record.scores) for record in records)
    st.session_state[TAKEN_IN] = [record.record_id for record in records]
    st.toast(f"{scores} scores imported", icon=":material/check:")
    st.rerun()


def take_results(asked: Mapping[str, Any], name: str, content: bytes) -> list[Any]:
    """Import and store the records of an uploaded file; see `import_results`."""
    if len(content) > _MEGABYTES * 2**20:
        raise UserError(f"{name} is larger than {_MEGABYTES} MB; give the file of results.")
    with tempfile.TemporaryDirectory() as folder:
        # Never use the browser's file name as a path.
        path = Path(folder) / "results.json"
        path.write_bytes(content)
        try:
            return import_results(validated(ImportRequest, {**asked, "files": (path,)}))
        except UserError as error:
            raise UserError(str(error).replace(str(path), name).replace(path.name, name)) from error


def _import_command(context: Context, shown: CurrentPlan | None, asked: Mapping[str, Any]) -> str:
    stats_dir = data.shown_stats_dir()
    said = {
        "--plan": shown and (shown.file or "plan.json"),
        "--candidate": asked["candidate"],
        "--stats-dir": stats_dir and str(stats_dir),
    }
    words = ["benchmark", data.shown_model(context.model), "--import", "results.json"]
    return command_line(*words, *(word for pair in said.items() if pair[1] for word in pair))
