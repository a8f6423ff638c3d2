"""Explore: experts that no token reached, and the heaviest paths through the layers."""

from typing import Final

import pandas as pd
import streamlit as st

from analysis.criteria.pathfinder import DEFAULT_PATHS
from analysis.criteria.trajectory import Parts, Steps, Weighing
from analysis.errors import UserError
from analysis.stats.manifest import Run
from app.charts.paths import runs_with_samples
from app.choices import BLEND, PathChoice
from app.literal import literal
from app.loaded import Loaded
from app.pages.explore.evidence import how_to_collect
from app.session import data
from app.widgets.charts import chart_or_message, show_chart, table_with_csv
from app.widgets.controls import say_unknown, view_switch
from app.widgets.notes import NO_CALIBRATION, badge, inform, show_command
from pruning.spec.base import command_line, repeated

# The page waits for it; use the command line for more.
_MOST_PATHS: Final = 1000
_MOST_CLUSTERS: Final = 64
# Steps of the dynamic program for all samples of a corpus: some seconds.
_MOST_STEPS: Final = 1 << 28
_WEIGHTS: Final[dict[Parts, str]] = {
    "both": "Importance and transitions",
    "importance": "Importance only",
    "transition": "Transitions only",
}
_STEPS: Final[dict[Steps, str]] = {"paper": "As in the paper", "measured": "As measured"}


def expert_part(loaded: Loaded) -> None:
    """How to choose an expert, whose page the entry script links to; the unrouted experts."""
    if loaded.choices.expert is None:
        inform("Click an expert in the map above, or move with the arrow keys and press Enter.")
    _unreached_part(loaded)


def _unreached_part(loaded: Loaded) -> None:
    st.markdown("**Experts that no calibration token reached**")
    if not loaded.runs:
        inform(NO_CALIBRATION)
        return
    lacking = [
        stats.table.loc[stats.table["num_tokens"] == 0, ["layer", "expert"]].assign(corpora=corpus)
        for corpus, stats in loaded.calibrated.items()
    ]
    by_expert = pd.concat(lacking).groupby(["layer", "expert"])["corpora"]
    table = by_expert.agg(", ".join).reset_index()
    if table.empty:
        badge("every expert routed on every corpus")
        return
    table_with_csv(table, "never-routed", f"{len(table)} experts that some corpus never reached")


def paths_part(loaded: Loaded) -> None:
    """Frequency of each expert on the heaviest paths per corpus, and the resulting plan."""
    st.markdown(
        "**Which experts do the heaviest paths pass through?** A path takes one expert per layer. "
        "The m heaviest paths of each sample are followed; a cell shows the share of samples with "
        "a path through it. MoE Pathfinder prunes empty cells."
    )
    having = runs_with_samples(loaded)
    if not loaded.runs:
        inform(NO_CALIBRATION)
        return
    if not having:
        how_to_collect(
            loaded,
            next(iter(loaded.runs.values())),
            "samples on which every expert runs on every token, as slow as a dense model",
            "dense",
        )
        return
    choice = _choice()
    try:
        for run in having.values():
            _check_time(loaded, run, choice)
    except UserError as error:
        st.warning(literal(str(error)), icon=":material/warning:")
        return
    with st.spinner("Following paths ..."):
        chart = chart_or_message("paths", loaded.choosing(paths=choice))
    if chart is not None:
        show_chart(chart, with_sentence=True)
        _command(loaded, list(having), choice)


def _choice() -> PathChoice:
    """Draw the controls; return their values."""
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        count = _number("Paths per sample, m", "m", range(1, _MOST_PATHS + 1), DEFAULT_PATHS)
        clusters = _number("Representative samples, K (0: all)", "k", range(_MOST_CLUSTERS + 1), 0)
        with st.container(width="content"):
            st.caption("Path weight")
            parts = view_switch("Path weight", "path-weights", _WEIGHTS)
        with st.container(width="content"):
            st.caption("Transitions")
            steps = view_switch("Transitions", "transitions", _STEPS)
    return PathChoice(count, Weighing(parts, steps), clusters or None)


def _number(label: str, key: str, allowed: range, usual: int) -> int:
    say_unknown(label, key, allowed)
    if st.session_state.get(key, usual) not in allowed:
        st.session_state[key] = usual
    chosen = st.number_input(
        label, allowed[0], allowed[-1], value=usual, key=key, bind="query-params", width=250
    )
    return int(chosen) if chosen in allowed else usual


def _check_time(loaded: Loaded, run: Run, choice: PathChoice) -> None:
    """Check that the paths of a run are fast enough for a page."""
    samples = choice.clusters or sum(corpus.num_sequences for corpus in run.manifest.corpora)
    layers = loaded.model.layers
    squares = sum(layer.num_experts**2 for layer in layers[1:])
    is_general = choice.weighing.steps == "measured" and choice.weighing.parts != "importance"
    if is_general and samples * squares * choice.count > _MOST_STEPS:
        raise UserError(
            f"Measured transitions of {samples} samples take minutes here. Choose representative "
            "samples, such as K = 10, or fewer paths; the command `moeprune paths` has no limit."
        )


def _command(loaded: Loaded, corpora: list[str], choice: PathChoice) -> None:
    corpus = loaded.corpus if loaded.corpus in corpora else corpora[0]
    names = corpora if loaded.corpus == BLEND else [corpus]
    stats_dir = data.shown_stats_dir()
    words = [data.shown_model(loaded.model), *repeated("--calibrated-on", names), *choice.options()]
    words += ["--stats-dir", str(stats_dir)] if stats_dir else []
    line = command_line("paths", *words, "--table", "paths.csv")
    show_command(line, heading="This choice as a plan; its table has these numbers")
    st.text(
        "Layers keep different numbers of experts. Add --sparsity to set the sparsity. Or choose "
        f"the criterion MoE Pathfinder ({DEFAULT_PATHS} paths per sample) with the schedule "
        "global: it prunes in the same order."
    )
