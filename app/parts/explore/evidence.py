"""Explore, what stands behind a choice: how many tokens it needs, and the damage it would do."""

import shlex
from fractions import Fraction

import pandas as pd
import streamlit as st

from analysis.corpora import PRESETS, corpus_name
from analysis.criteria import CRITERIA, Criterion, get_criterion
from analysis.demo.texts import TEXTS
from analysis.ranking.proxy import proxy_quality
from analysis.stats.shards import can_rank
from analysis.stats.store import SHARDS, Run
from analysis.stats.tables import Gate
from app.charts.context import BLEND, Context
from app.frame.charts import show_chart, show_table
from app.literal import literal
from app.parts.explore.overlap import RunKeys, run_keys
from app.plots import evidence, explore
from app.session import data
from pruning.requests.base import CalibrateRequest

_SHARES = {"kendall_tau": "Kendall tau", "pearson_log": "Pearson of logs"}


def tokens_part(context: Context) -> None:
    """Pruned sets of an eighth, a quarter and a half of the tokens against those of all."""
    st.markdown(
        "**How many tokens does the choice need?** What is pruned by the first eighth, quarter and "
        "half of each text's tokens, against what all of them prune. A line that reaches 1 early "
        "needed no more."
    )
    runs = _runs_with_parts(context)
    if not runs or not _removes(context):
        return
    part = data.parts_of_key(data.run_key(next(iter(runs.values()))))[0]
    options = [name for name, each in CRITERIA.items() if can_rank(each, part)]
    beside = st.pills(
        "Criteria beside the one in use",
        options,
        selection_mode="multi",
        default=list(explore.CURVE_BESIDE),
        key="beside",
        bind="query-params",
        format_func=lambda name: CRITERIA[name].label,
    )
    own = [context.criterion] if context.criterion and can_rank(context.criterion, part) else []
    if context.criterion and not own:
        st.text(f"{context.criterion.label} cannot rank by a part of the tokens; it is left out.")
    chosen = [CRITERIA[name] for name in beside if name in options]
    criteria = {each.name: each for each in (*own, *chosen)}
    if not criteria:
        st.info("Choose a criterion above.", icon=":material/info:")
        return
    table = _parts(run_keys(runs), tuple(criteria), context.gate, context.sparsity_percent)
    show_chart(evidence.parts_chart(table, context.about(f"gate {context.gate}")))
    _command(context, "--parts", "--criterion", next(iter(criteria)))


def _runs_with_parts(context: Context) -> dict[str, Run]:
    """The runs whose tokens are kept in parts; says which are not, and what to do."""
    if not context.runs:
        st.info("No calibration yet: start one on the **Start** page.", icon=":material/info:")
    found = {corpus: run for corpus, run in context.runs.items() if SHARDS in run.manifest.files}
    for corpus in context.runs.keys() - found.keys():
        st.info(
            f"The run of {literal(corpus)} was made before token shards were kept; calibrate "
            "again.",
            icon=":material/info:",
        )
    return found


def _removes(context: Context) -> bool:
    if context.sparsity_percent == 0:
        st.info("Nothing is pruned at 0%. Raise the sparsity.", icon=":material/info:")
    return context.sparsity_percent > 0


@st.cache_data(max_entries=128)
def _parts(runs: RunKeys, names: tuple[str, ...], gate: Gate, percent: int) -> pd.DataFrame:
    parts = {corpus: data.parts_of_key(key) for corpus, key in runs}
    criteria = [get_criterion(name) for name in names]
    return evidence.parts_table(parts, criteria, gate, Fraction(percent, 100))


def damage_part(context: Context) -> None:
    """The exact damage of removing each expert, against what costs nothing to measure."""
    st.markdown(
        "**Does a cheap score stand in for the exact damage?** The exact damage is how far a "
        "layer's output moves without the expert, summed over its tokens."
    )
    if not context.runs:
        st.info("No calibration yet: start one on the **Start** page.", icon=":material/info:")
        return
    corpus = context.corpus if context.corpus != BLEND else next(iter(context.runs))
    run = data.routed_runs(context.model, CRITERIA["damage"])[corpus]
    stats = data.expert_stats(run)
    if "damage" not in stats.table:
        how_to_collect(
            context,
            run,
            "the exact damage, which is measured only when asked for: it evaluates one expert more "
            "for each token and layer, or several where the router's order changes",
            "routed,damage",
        )
        return
    proxy = _proxy(context.criterion)
    with st.container(border=True):
        table = evidence.fate_table(
            stats, proxy, context.gate, Fraction(context.sparsity_percent, 100)
        )
        about = context.about(run.manifest.run_id, f"gate {context.gate}")
        show_chart(evidence.damage_chart(table, proxy, about))
    with st.container(border=True):
        _quality(run, context.gate, corpus)
    _command(context, "--proxy")


def _proxy(criterion: Criterion | None) -> Criterion:
    """The variant in use; the papers' stand-in where the criterion is none of the 18."""
    is_variant = criterion is not None and criterion.exponents is not None
    return criterion if criterion and is_variant else get_criterion(evidence.PROXY)


def how_to_collect(context: Context, run: Run, lacking: str, groups: str) -> None:
    """Say what the statistics of a run lack, and the command that collects it.

    Args:
        context: what is on screen.
        run: of the corpus that is calibrated again.
        lacking: what it lacks, and what that costs.
        groups: statistic groups to collect.
    """
    name = run.manifest.corpus
    st.info(
        f"The statistics of {literal(name)} lack {lacking}. Collect it with:",
        icon=":material/info:",
    )
    request = CalibrateRequest(
        model=data.shown_model(context.model),
        corpus=_source_of(name),
        tokens=max(run.manifest.num_tokens, 2),
        seq_len=run.manifest.settings.get("seq_len"),
        groups=groups,
        stats_dir=data.shown_stats_dir(),
    )
    st.code(request.command(), language=None, wrap_lines=True)


def _source_of(name: str) -> str:
    """What --corpus takes for the corpus of a run: its own name, or the file of that name."""
    if name in TEXTS or name in PRESETS:
        return name
    return next((path for path in data.text_files() if corpus_name(path) == name), name)


@st.cache_data(max_entries=32)
def _proxy_quality(run: data.RunKey, gate: Gate) -> pd.DataFrame:
    return proxy_quality(data.stats_of_key(run), gate)


def _quality(run: Run, gate: Gate, corpus: str) -> None:
    table = _proxy_quality(data.run_key(run), gate)
    best = table.iloc[0]
    st.markdown(
        f"**Every variant as a stand-in**, on {literal(corpus)}. {best['label']} prunes "
        f"{best['overlap_50']:.0%} of what the exact damage prunes at 50%, more than any other."
    )
    shown = table.drop(columns="criterion").rename(
        columns=_SHARES
        | {"label": "criterion", "overlap_25": "overlap at 25%", "overlap_50": "overlap at 50%"}
    )
    show_table(shown.round(3), "damage-proxies", "How well each variant stands in for the damage")


def _command(context: Context, *words: str) -> None:
    st.markdown("**These numbers from the command line**")
    model, gate = data.shown_model(context.model), context.gate
    line = ["moeprune", "overlap", model, "--sparsity", context.sparsity, *words]
    if "--proxy" not in words and gate != "applied":
        line += ["--gate", gate]
    if stats_dir := data.shown_stats_dir():
        line += ["--stats-dir", str(stats_dir)]
    st.code(shlex.join([*line, "-o", "overlap.csv"]), language=None, wrap_lines=True)
