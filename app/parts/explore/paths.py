"""Explore, paths: which experts the heaviest paths through the layers pass through, by text."""

import shlex
from typing import Final

import pandas as pd
import streamlit as st

from analysis.criteria.pathfinder import DEFAULT_PATHS, PATHFINDER
from analysis.errors import UserError
from analysis.ranking.trajectory import Parts, Steps, Weighing, weighing_of
from analysis.stats.store import Run
from app.charts.context import BLEND, Context
from app.frame.charts import show_chart
from app.frame.controls import switch
from app.literal import literal
from app.parts.explore.evidence import how_to_collect
from app.plots.paths import PathChoice, path_table, paths_chart
from app.session import data

# A page waits for it: beyond, the command line has the time.
_MOST_PATHS: Final = 1000
_MOST_CLUSTERS: Final = 64
# Steps of the dynamic program for all samples of a text: some seconds.
_MOST_STEPS: Final = 1 << 28
_WEIGHTS: Final[dict[Parts, str]] = {
    "both": "Importance and transitions",
    "importance": "Importance only",
    "transition": "Transitions only",
}
_STEPS: Final[dict[Steps, str]] = {"paper": "As in the paper", "measured": "As measured"}


def paths_part(context: Context) -> None:
    """The frequency of each expert on the heaviest paths of each text, and the plan it makes."""
    st.markdown(
        "**Which experts do the heaviest paths pass through?** A path takes one expert from each "
        "layer. Of each sample of a text the m heaviest are followed; a cell says in what share of "
        "the samples one of them passes there. Empty cells are on no path: MoE Pathfinder prunes "
        "them."
    )
    runs = data.routed_runs(context.model, PATHFINDER)
    having = {corpus: run for corpus, run in runs.items() if "dense" in run.manifest.groups}
    if not having:
        _say_missing(context, runs)
        return
    choice = _choice()
    try:
        tables = {corpus: _table_of(context, run, choice) for corpus, run in having.items()}
    except UserError as error:
        st.warning(literal(str(error)), icon=":material/warning:")
        return
    chart = paths_chart(tables, choice, context.about(" ".join(choice.said())))
    st.text(chart.alt)
    show_chart(chart)
    _command(context, list(having), choice)


def _say_missing(context: Context, runs: dict[str, Run]) -> None:
    if not runs:
        st.info("No calibration yet: start one on the **Start** page.", icon=":material/info:")
        return
    how_to_collect(
        context,
        next(iter(runs.values())),
        "samples, of which every expert is run on every token: as dear as a model without routing",
        "routed,dense",
    )


def _choice() -> PathChoice:
    """Draw the controls; what they say."""
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        count = _number("Paths of each sample, m", "m", range(1, _MOST_PATHS + 1), DEFAULT_PATHS)
        clusters = _number("Representative samples, K (0: all)", "k", range(_MOST_CLUSTERS + 1), 0)
        with st.container(width="content"):
            st.caption("What weighs a path")
            parts = switch("What weighs a path", "path-weights", _WEIGHTS)
        with st.container(width="content"):
            st.caption("Transitions")
            steps = switch("Transitions", "transitions", _STEPS)
    return PathChoice(count, Weighing(parts, steps), clusters or None)


def _number(label: str, key: str, allowed: range, usual: int) -> int:
    if st.session_state.get(key, usual) not in allowed:
        st.session_state[key] = usual
    chosen = st.number_input(
        label,
        allowed[0],
        allowed[-1],
        value=usual,
        key=key,
        bind="query-params",
        width=250,
    )
    return int(chosen) if chosen in allowed else usual


def _table_of(context: Context, run: Run, choice: PathChoice) -> pd.DataFrame:
    """The table of one text.

    Raises:
        UserError: it would take minutes; or what is asked for was not measured.
    """
    samples = choice.clusters or sum(each.num_sequences for each in run.manifest.corpora)
    layers = context.model.layers
    squares = sum(layer.num_experts**2 for layer in layers[1:])
    is_general = choice.weighing.steps == "measured" and choice.weighing.parts != "importance"
    if is_general and samples * squares * choice.count > _MOST_STEPS:
        raise UserError(
            f"Measured transitions of {samples} samples take minutes here. Choose representative "
            "samples, such as K = 10, or fewer paths; the command `moeprune paths` has no limit."
        )
    weighing = choice.weighing
    return _cached_table(
        data.run_key(run),
        (choice.count, weighing.parts, weighing.steps, choice.clusters),
    )


@st.cache_data(max_entries=128, show_spinner="Following paths ...")
def _cached_table(run: data.RunKey, chosen: tuple[int, str, str, int | None]) -> pd.DataFrame:
    count, parts, steps, clusters = chosen
    choice = PathChoice(count, weighing_of(parts, steps), clusters)
    return path_table(data.sample_stats_of_key(run), choice)


def _command(context: Context, corpora: list[str], choice: PathChoice) -> None:
    corpus = context.corpus if context.corpus in corpora else corpora[0]
    wanted = corpora if context.corpus == BLEND else [corpus]
    st.markdown("**What the paths keep, as a plan; its table has these numbers**")
    line = ["moeprune", "paths", data.shown_model(context.model)]
    for each in wanted:
        line += ["--corpus", each]
    line += choice.said()
    if stats_dir := data.shown_stats_dir():
        line += ["--stats-dir", str(stats_dir)]
    st.code(shlex.join([*line, "--table", "paths.csv"]), language=None, wrap_lines=True)
    st.text(
        "Layers then keep different numbers. To remove a given share instead, add --sparsity. Or "
        f"choose the criterion MoE Pathfinder, which follows {DEFAULT_PATHS} paths of each sample: "
        "with the schedule global, a plan cuts by the same order."
    )
