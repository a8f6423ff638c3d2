"""Explore, your traffic: what the plan's experts hold of what users ask."""

from pathlib import Path

import streamlit as st

from analysis.corpora.account import SKIPPED_ROWS, row_facts
from analysis.errors import UserError
from analysis.stats.manifest import Run
from analysis.traffic.importing import num_unseen, traffic_files
from app.charts.traffic import held_by_layer, near_corpora
from app.literal import literal
from app.loaded import Loaded
from app.session import data
from app.settings import shown_path
from app.widgets.charts import show_chart
from app.widgets.controls import choose
from app.widgets.notes import inform, show_command
from pruning.planning.traffic_fit import fit_of_run, imported_traffic
from pruning.spec.base import command_line


def traffic_part(loaded: Loaded) -> None:
    """The traffic that was imported, beside every calibration; how to import some if none was."""
    store = loaded.study.store
    runs = imported_traffic(store, loaded.model.identity)
    model, stats_dir = data.shown_model(loaded.model), data.shown_stats_dir()
    place = ("--model", model, *(("--stats-dir", str(stats_dir)) if stats_dir else ()))
    if not runs:
        inform("No traffic yet. This reads the answers of vLLM or SGLang, with their experts:")
        show_command(command_line("runs", "import", "monday.jsonl", *place))
        return
    newest = max(runs, key=lambda name: str(runs[name].manifest.made.get("created_at")))
    name = newest
    if len(runs) > 1:
        name = choose("Traffic", list(runs), newest, key="traffic", bind="query-params", width=260)
    run = runs[name]
    try:
        fit = fit_of_run(loaded.shown_plan, run, store, loaded.study.stats_of)
    except UserError as error:
        inform(literal(error))
        return
    words = fit.finding(f"the routed choices of {name}")
    st.markdown(f"{literal(words[0].upper() + words[1:])}.")
    show_chart(held_by_layer(loaded, fit, name, run.manifest.run_id))
    if fit.chance is not None and fit.corpora:
        st.markdown(
            "**How near each corpus is**: the overlap of what frequency would prune on it and on "
            "this traffic."
        )
        show_chart(near_corpora(loaded, fit, name, run.manifest.run_id))
    st.text(f"{fit.words[0].upper()}{fit.words[1:]}.")
    plan = loaded.shown.file_name if loaded.shown else "plan.json"
    show_command(command_line("traffic", plan, *_files(run), *place, *_counted_as(run)))


def _files(run: Run) -> list[str]:
    """The files that were imported, as typed in the working directory."""
    return [str(shown_path(Path(path))) for path in traffic_files(run.manifest.corpora[0])]


def _counted_as(run: Run) -> list[str]:
    """The options by which the files are counted as they were."""
    corpus = run.manifest.corpora[0]
    words = ["--count", "response"] if run.manifest.settings.get("count") == "response" else []
    if skipped := row_facts(corpus.prepared).get(SKIPPED_ROWS):
        words += ["--skip-bad-rows", str(skipped)]
    return [*words, "--allow-small-ids"] if num_unseen(corpus) else words
