"""Explore, evidence for a choice: tokens needed, and exact damage."""

from dataclasses import replace

import streamlit as st

from analysis.corpora import PRESETS, corpus_name
from analysis.criteria import CRITERIA
from analysis.demo.texts import TEXTS
from analysis.ranking.proxy import proxy_quality
from analysis.stats.shards import can_rank
from analysis.stats.store import SHARDS, Run
from app.charts.context import BLEND, CURVE_BESIDE, Context
from app.charts.overlap_by_tokens import parts_of
from app.frame.charts import show, show_table
from app.frame.notes import NO_CALIBRATION, inform, show_command
from app.literal import literal
from app.session import data
from pruning.requests.base import command_line
from pruning.requests.calibration import CalibrateRequest

_SHARES = {"kendall_tau": "Kendall tau", "pearson_log": "Pearson of logs"}


def tokens_part(context: Context) -> None:
    """Pruned sets from an eighth, a quarter and a half of the tokens against all."""
    st.markdown(
        "**How many tokens does the choice need?** Experts pruned from the first eighth, quarter "
        "and half of each corpus' tokens, compared with all tokens. A line that reaches 1 early "
        "needed no more."
    )
    runs = _runs_with_parts(context)
    if not runs:
        return
    part = context.keep(parts_of, next(iter(runs.values())))[0]
    options = [name for name, each in CRITERIA.items() if can_rank(each, part)]
    beside = st.pills(
        "Other criteria",
        options,
        selection_mode="multi",
        default=list(CURVE_BESIDE),
        key="beside",
        bind="query-params",
        format_func=lambda name: CRITERIA[name].label,
    )
    if not can_rank(own := context.ranking_criterion, part):
        st.text(f"{own.label} cannot rank on a part of the tokens, so it is left out.")
    chosen = tuple(name for name in beside if name in options)
    if show("overlap-by-tokens", replace(context, beside=chosen)) is not None:
        first = own if can_rank(own, part) else CRITERIA[chosen[0]]
        _command(context, "--parts", "--criterion", first.name)


def _runs_with_parts(context: Context) -> dict[str, Run]:
    """Runs with token shards; shows which runs lack them and what to do."""
    if not context.runs:
        inform(NO_CALIBRATION)
    found = {corpus: run for corpus, run in context.runs.items() if SHARDS in run.manifest.files}
    for corpus in context.runs.keys() - found.keys():
        inform(f"The run of {literal(corpus)} has no token shards; calibrate again.")
    return found


def damage_part(context: Context) -> None:
    """The exact damage of removing each expert, against cheap scores."""
    st.markdown(
        "**Does a cheap score stand in for the exact damage?** The exact damage is how far a "
        "layer's output moves without the expert, summed over its tokens."
    )
    if not context.runs:
        inform(NO_CALIBRATION)
        return
    corpus = context.corpus if context.corpus != BLEND else next(iter(context.runs))
    run = data.routed_runs(context.model, CRITERIA["damage"])[corpus]
    if "damage" not in context.stats_of(run).table:
        how_to_collect(
            context,
            run,
            "the exact damage, which is measured on request only: it evaluates one more expert per "
            "token and layer, or several where the router's order changes",
            "routed,damage",
        )
        return
    with st.container(border=True):
        show("damage-proxy", context)
    with st.container(border=True):
        _quality(context, run)
    _command(context, "--proxy")


def how_to_collect(context: Context, run: Run, lacking: str, groups: str) -> None:
    """Show what the statistics of a run lack, its cost, and the command that collects it.

    `groups` are the statistic groups to collect.
    """
    name = run.manifest.corpus
    inform(f"The statistics of {literal(name)} lack {lacking}. Collect it with:")
    source = name
    if name not in TEXTS and name not in PRESETS:  # a file name: --corpus takes its path
        source = next((path for path in data.text_files() if corpus_name(path) == name), name)
    request = CalibrateRequest(
        model=data.shown_model(context.model),
        corpus=source,
        tokens=max(run.manifest.num_tokens, 2),
        seq_len=run.manifest.settings.get("seq_len"),
        groups=groups,
        stats_dir=data.shown_stats_dir(),
    )
    show_command(request.command())


def _quality(context: Context, run: Run) -> None:
    corpus = run.manifest.corpus
    table = context.keep(proxy_quality, context.stats_of(run), context.gate)
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
    line = ["overlap", data.shown_model(context.model), "--sparsity", context.sparsity, *words]
    if "--proxy" not in words and context.gate != "applied":
        line += ["--gate", context.gate]
    if stats_dir := data.shown_stats_dir():
        line += ["--stats-dir", str(stats_dir)]
    shown = command_line(*line, "-o", "overlap.csv")
    show_command(shown, heading="These numbers from the command line")
