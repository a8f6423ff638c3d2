"""Evaluate, benchmarks: results of this model, with user-defined weights."""

from dataclasses import replace
from typing import Final

import pandas as pd
import streamlit as st

from app.charts.benchmarks import (
    Board,
    benchmark_results,
    board_of,
    own_leaderboard,
    percent,
    shares_of,
    ways_of,
)
from app.charts.choices import ALL_SHARES, ResultChoice
from app.charts.context import Context
from app.charts.names import FULL
from app.frame.charts import chart_card, csv_button, show
from app.frame.controls import choose
from app.frame.notes import inform
from app.literal import literal
from app.parts.evaluate.benchmark_forms import TAKEN_IN, import_form, run_form
from app.parts.evaluate.published import profile_part, weight_controls
from app.parts.evaluate.sweep_fields import share_control
from app.session.job_queue import job_store, queued_key
from app.session.records import records_of
from pruning.evaluate.benchmarks.record import BenchmarkStore

_WAY, _REMOVED = "bench.way", "bench.removed"  # keys of the controls and URL parameters
_ALL: Final = "all"
_SCREENING: Final = (
    "Differences below about two standard errors may be chance. Small question counts are for "
    "screening; run full benchmarks before a release."
)


def benchmark_part(context: Context) -> None:
    """Leaderboard, profile, winner map and memory chart, with the forms below."""
    results = benchmark_results(records_of(context, BenchmarkStore))
    dtype = ""
    if results.empty:
        inform(
            "No benchmark results for this model yet. Run some below, or import a results file of "
            "lm-evaluation-harness or EvalScope."
        )
    else:
        _turn_to_new(results)
        way = _boards(context, results)
        dtype = str(results.loc[results["way"] == way, "dtype"].iloc[0])
    with st.container(border=True):
        run_form(context, dtype)
    with st.container(border=True):
        import_form(context)


def _turn_to_new(results: pd.DataFrame) -> None:
    """Set the controls to the setup and sparsity of results new in this session."""
    ids: list[str] = st.session_state.pop(TAKEN_IN, [])
    queued = st.session_state.get(queued_key("benchmark"))
    job = next((job for job in job_store().list(kinds=("benchmark",)) if job.id == queued), None)
    if job and job.is_finished:
        del st.session_state[queued_key("benchmark")]
        ids = [*ids, *(each["record_id"] for each in (job.result or {}).get("benchmarks", ()))]
    rows = results[results["record"].isin(ids)]
    if rows.empty:
        return
    way = rows["way"].iloc[-1]
    st.session_state[_WAY] = way
    lost = rows.loc[rows["removed"] != 0, "removed"].unique()  # without the original model
    if len(lost) and shares_of(results, way):
        alone = len(lost) == 1 and lost[0] > 0
        st.session_state[_REMOVED] = percent(lost[0]) if alone else _ALL


def _boards(context: Context, results: pd.DataFrame) -> str:
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
                format_func=literal,
                help="Only results with equal settings are compared.",
            )
        shares = {percent(share): share for share in shares_of(results, way)}
        share = share_control({**shares, _ALL: None}, _REMOVED) if shares else None
        board = board_of(results, way, share, context.model.name)
        everything = board_of(results, way, None, context.model.name)
        weights = weight_controls(everything.tasks, board.tasks, what="benchmark")
    with st.container(border=True):
        _leaderboard(board, weights)
    removed = ALL_SHARES if share is None else share
    choice = ResultChoice(results, way=way, removed=removed, weights=weights)
    context = replace(context, results=choice)
    chart_card(
        "benchmark-pareto",
        context,
        "**Quality against memory**: weighted benchmark average; steps mark the best at each "
        "memory size, bars are 95% intervals.",
    )
    if board.has_pruned:
        with st.container(border=True), profile_part() as shape:
            show(f"own-capability{shape}", context)
    chart_card(
        "benchmark-winner-map",
        context,
        "**Winner map**: the best candidate per benchmark and sparsity.",
    )
    st.text(_SCREENING)
    return way


def _leaderboard(board: Board, weights: dict[str, float]) -> None:
    table = own_leaderboard(board, weights)
    pruned = table[table["candidate"] != FULL]
    whole = table.loc[table["candidate"] == FULL, "average"]
    beside = f" The original model averages {whole.iloc[0]:.3f}." if len(whole) else ""
    st.markdown(f"**Leaderboard**: {_first(pruned)}.{beside}")
    st.dataframe(
        _with_errors(table, board),
        hide_index=True,
        placeholder="-",
        alt=f"{len(table)} candidates by average rank over {len(board.tasks)} benchmarks",
        column_config={
            "candidate": st.column_config.TextColumn(pinned=True),
            "average_rank": st.column_config.NumberColumn("average rank", format="%.2f"),
            "memory_saved": st.column_config.NumberColumn("memory saved", format="percent"),
        },
    )
    st.text(
        f"{board.about}. Scores ± standard error (Wilson's interval where all or no answers are "
        "right). Rank 1 is best; ties share ranks."
    )
    # The file has the standard error of each score in its own column.
    errors = board.errors().add_suffix(" stderr").rename_axis("candidate").reset_index()
    csv_button(table.merge(errors, on="candidate"), "benchmarks")


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
    shown = table.drop(columns=["stderr", "bytes"]).dropna(axis="columns", how="all")
    pairs = {name: (table[name], errors[name]) for name in board.tasks}
    pairs["average"] = (table["average"], table["stderr"])
    for name, (scores, spread) in pairs.items():
        # A plus-minus sign, as tables of results have it.
        ends = spread.map(" \u00b1 {:.3f}".format, na_action="ignore").fillna("")
        shown[name] = [
            None if pd.isna(score) else f"{score:.3f}{end}"
            for score, end in zip(scores, ends, strict=True)
        ]
    return shown
