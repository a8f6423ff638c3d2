"""Evaluate, benchmarks: results with user-defined weights, and how to run and import more."""

from pathlib import Path
from typing import Any, Final

import pandas as pd
import streamlit as st
from streamlit.column_config import NumberColumn, TextColumn

from analysis.demo.tasks import LOCAL_TASKS
from analysis.errors import UserError
from analysis.files.shipped import DEMO_MODEL
from analysis.machine.extras import has_extra, install_line
from app.charts.benchmarks import (
    Board,
    benchmark_scores,
    board_of,
    own_leaderboard,
    percent,
    sparsities_of,
    ways_of,
)
from app.charts.names import FULL
from app.choices import ALL_SHARES, ResultChoice
from app.literal import literal
from app.loaded import CurrentPlan, Loaded
from app.pages.evaluate.published import PROFILE, weight_controls
from app.session import data
from app.session.data import records_of
from app.session.job_queue import job_store, own_model, queued_key
from app.session.state import one_of
from app.widgets.charts import chart_card, table_with_csv
from app.widgets.controls import choose
from app.widgets.job_form import DTYPES, dtype_field, offer_job, share_control
from app.widgets.notes import inform, show_command
from pruning.benchmarks.record import BenchmarkStore
from pruning.requests.benchmark import BenchmarkRequest
from pruning.spec.base import command_line, validated
from pruning.surgery.manifest import MANIFEST_NAME, read_manifest

_WAY, _REMOVED = "bench.way", "bench.removed"  # keys of the controls and URL parameters
_ALL: Final = "all"
_SCREENING: Final = (
    "Differences below about two standard errors may be chance. Small question counts are for "
    "screening; run full benchmarks before a release."
)
_FULL, _PLAN, _EXPORT = "full", "plan", "export"
_TO_RUN: Final = {
    _FULL: "The original model",
    _PLAN: "Your plan (masked in memory)",
    _EXPORT: "An export",
}


def benchmark_part(loaded: Loaded) -> None:
    """Leaderboard and profile, with the form and the command that imports below."""
    results = benchmark_scores(records_of(loaded, BenchmarkStore))
    dtype = ""
    if results.empty:
        inform("No benchmark results for this model yet. Run some below, or import a results file.")
    else:
        _show_new(results)
        way = _boards(loaded, results)
        dtype = str(results.loc[results["way"] == way, "dtype"].iloc[0])
    with st.container(border=True):
        run_form(loaded, dtype)
    st.markdown("**Import** a results file that lm-evaluation-harness wrote elsewhere.")
    _import_commands(loaded)


def _show_new(results: pd.DataFrame) -> None:
    """Set the controls to the setup and sparsity of results new in this session."""
    queued = st.session_state.get(queued_key("benchmark"))
    job = next((job for job in job_store().list(kinds=("benchmark",)) if job.id == queued), None)
    if job is None or not job.is_finished:
        return
    del st.session_state[queued_key("benchmark")]
    ids = [record["record_id"] for record in (job.result or {}).get("benchmarks", ())]
    rows = results[results["record"].isin(ids)]
    if rows.empty:
        return
    way = rows["way"].iloc[-1]
    st.session_state[_WAY] = way
    shares = rows.loc[rows["removed"] != 0, "removed"].unique()  # without the original model
    if len(shares) and sparsities_of(results, way):
        alone = len(shares) == 1 and shares[0] > 0
        st.session_state[_REMOVED] = percent(shares[0]) if alone else _ALL


def _boards(loaded: Loaded, results: pd.DataFrame) -> str:
    """Draw the choice of benchmark setup; return it."""
    with st.container(horizontal=True, vertical_alignment="bottom"):
        ways = ways_of(results)
        way = ways[0]
        if len(ways) > 1:
            way = choose(
                "Benchmarked with",
                ways,
                key=_WAY,
                bind="query-params",
                width=320,
                help="Only results with equal settings are compared.",
            )
        shares = {percent(share): share for share in sparsities_of(results, way)}
        share = share_control({**shares, _ALL: None}, _REMOVED) if shares else None
        board = board_of(results, way, share, loaded.model.name)
        everything = board_of(results, way, None, loaded.model.name)
        weights = weight_controls(everything.tasks, board.tasks, what="benchmark")
    with st.container(border=True):
        _leaderboard(board, weights)
        if loaded.shown and loaded.shown.plan.digest not in set(board.rows["plan"]):
            st.text("Your plan was not benchmarked here: run it below.")
    removed = ALL_SHARES if share is None else share
    choice = ResultChoice(results, way=way, removed=removed)
    loaded = loaded.choosing(results=choice)
    if board.has_pruned:
        chart_card("own-capability", loaded, PROFILE)
    st.text(_SCREENING)
    return way


def _leaderboard(board: Board, weights: dict[str, float]) -> None:
    table = own_leaderboard(board, weights)
    pruned = table[table["candidate"] != FULL]
    averages = table.loc[table["candidate"] == FULL, "average"]
    comparison = f" The original model averages {averages.iloc[0]:.3f}." if len(averages) else ""
    least = board.kept_least(pruned["candidate"].iloc[0]) if len(pruned) else ""
    st.markdown(f"**Leaderboard**: {_first(pruned)}.{comparison} {literal(least)}")
    # The file has the standard error of each score in its own column.
    errors = board.errors().add_suffix(" stderr").rename_axis("candidate").reset_index()
    table_with_csv(
        table.merge(errors, on="candidate"),
        "benchmarks",
        f"{len(table)} candidates by average rank over {len(board.tasks)} benchmarks",
        shown=_with_errors(table, board),
        placeholder="-",
        column_config={
            "candidate": TextColumn(pinned=True),
            "average_rank": NumberColumn("average rank", format="%.2f"),
            "memory_saved": NumberColumn("memory saved", format="percent"),
        },
    )
    repaired = (board.rows["repaired_on"].fillna("") != "").any()
    st.text(
        f"{board.about}. Scores ± standard error (Wilson's interval where all or no answers are "
        "right). Rank 1 is best; ties share ranks."
        + (" Candidates + repair are refitted, the others are not." if repaired else "")
    )


def _first(pruned: pd.DataFrame) -> str:
    """Name the leading pruned candidate, or say that nothing is comparable."""
    if pruned.empty:
        return "only the original model was benchmarked"
    best = pruned.iloc[0]
    name, average = literal(best["candidate"]), best["average"]
    mean = "" if pd.isna(average) else f", average {average:.3f}"
    if pd.isna(best["average_rank"]):
        return f"{name} has no rival here, so there are no ranks{mean}"
    return f"best average rank {name} ({best['average_rank']:.2f}){mean}"


def _with_errors(table: pd.DataFrame, board: Board) -> pd.DataFrame:
    """The table as displayed: each score as `score ± standard error`."""
    errors = board.errors().reindex(table["candidate"])
    cells = table.drop(columns=["stderr", "bytes"]).dropna(axis="columns", how="all")
    pairs = {name: (table[name], errors[name]) for name in board.tasks}
    pairs["average"] = (table["average"], table["stderr"])
    for name, (scores, spread) in pairs.items():
        # A plus-minus sign, as tables of results have it.
        ends = spread.map(" \u00b1 {:.3f}".format, na_action="ignore").fillna("")
        cells[name] = [
            None if pd.isna(score) else f"{score:.3f}{end}"
            for score, end in zip(scores, ends, strict=True)
        ]
    return cells


def run_form(loaded: Loaded, dtype: str) -> None:
    """Form that queues benchmarks of the original model, a plan or an export."""
    st.markdown("**Run benchmarks** with lm-evaluation-harness.")
    if not has_extra("eval"):
        inform(
            f"lm-evaluation-harness is not installed on this server: `{install_line('eval')}`. "
            "Results files can be imported."
        )
        return
    what, current_plan = _candidate(loaded)
    values = {**own_model(loaded), **_tasks(loaded, dtype)}
    about = loaded.model.name if current_plan is None else current_plan.name
    if what == _EXPORT:
        exports = exports_of(loaded)
        if not exports:
            st.text("No exports of this model in the export folder yet.")
            return
        name = st.selectbox("Export", list(exports), key="bench.run.export")
        values |= {"model": str(exports[name]), "source": own_model(loaded)["model"]}
        about = exports[name].name
    elif what == _PLAN:
        if current_plan is None:
            return
        values["plans"] = (current_plan.plan.to_dict(),)
    if not values["tasks"]:
        st.text("Enter at least one task.")
        return
    sent = st.button(
        "Run benchmarks", icon=":material/play_arrow:", type="primary", key="bench.run.send"
    )
    offer_job(loaded, validated(BenchmarkRequest, values), about, sent=sent, plan=current_plan)


def _candidate(loaded: Loaded) -> tuple[str, CurrentPlan | None]:
    """Draw the choice of candidate, with its plan if it is a plan."""
    chosen = st.segmented_control(
        "Candidate",
        list(_TO_RUN),
        default=_FULL,
        required=True,
        key="bench.run.what",
        format_func=_TO_RUN.__getitem__,
    )
    what = one_of(chosen, list(_TO_RUN), _FULL)
    return what, loaded.shown if what == _PLAN else None


def _tasks(loaded: Loaded, dtype: str) -> dict[str, Any]:
    """Draw tasks, question limit and dtype; return request fields."""
    local: list[str] = []
    if loaded.model.name == DEMO_MODEL:
        local = st.multiselect(
            "Offline tasks",
            list(LOCAL_TASKS),
            default=list(LOCAL_TASKS),
            key="bench.run.local",
            help="Built from the demo's corpora.",
        )
    with st.container(horizontal=True, vertical_alignment="bottom"):
        hub_tasks = st.text_input(
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
    tasks = (*local, *hub_tasks.replace(",", " ").split())
    return {"tasks": tasks, "limit": limit, "dtype": chosen}


def exports_of(loaded: Loaded) -> dict[str, Path]:
    """Exports of this model below the export root: name -> folder."""
    folders = {}
    for manifest in sorted(data.settings().export_root.glob(f"*/{MANIFEST_NAME}")):
        try:
            source = read_manifest(manifest.parent).source
        except UserError:
            continue  # the Export page reports it
        if source.identity == loaded.model.identity and not manifest.parent.is_symlink():
            folders[manifest.parent.name] = manifest.parent
    return folders


def _import_commands(loaded: Loaded) -> None:
    """Show the command that imports results of the original model, and that of the current plan."""
    plans: dict[str, tuple[str, ...]] = {"Scores of the original model:": ()}
    if loaded.shown:
        plans["Scores of this plan:"] = ("--plan", str(loaded.shown.file or "plan.json"))
    stats_dir = data.shown_stats_dir()
    where = ("--stats-dir", str(stats_dir)) if stats_dir else ()
    for whose, plan in plans.items():
        st.text(whose)
        words = ("benchmark", data.shown_model(loaded.model), *plan, *where)
        show_command(command_line(*words, "--import", "results.json"))
