"""Explore, evidence for a choice: tokens needed, exact damage, and loss bin by bin."""

import pandas as pd
import streamlit as st
from streamlit.column_config import NumberColumn

from analysis.corpora.presets import PRESETS
from analysis.corpora.spec import corpus_name
from analysis.criteria import CRITERIA, criterion_label
from analysis.demo.listing import DEMO_CORPORA
from analysis.ranking.experts import can_rank
from analysis.ranking.proxy import proxy_quality
from analysis.stats.columns import Group
from analysis.stats.manifest import SHARDS, Run
from app.charts import loss_bins
from app.charts.loss_bins import WORDS
from app.charts.overlap_by_tokens import parts_of
from app.charts.traces import signed
from app.choices import BLEND, CURVE_BESIDE
from app.literal import literal
from app.loaded import Loaded
from app.session import data
from app.session.chosen_expert import choose_in_chart
from app.session.data import records_of
from app.widgets.action_form import action_form, forms_at
from app.widgets.charts import show_chart, show_named, table_with_csv
from app.widgets.controls import choose, say_unknown
from app.widgets.notes import NO_CALIBRATION, inform, show_command
from pruning.plan.plan import NEURON_GRANULARITY
from pruning.records.bins import BinsRecord, BinsStore
from pruning.records.subsets import SubsetStore
from pruning.requests.calibration import CalibrateRequest
from pruning.spec.base import command_line

_SHARES = {"kendall_tau": "Kendall tau", "pearson_log": "Pearson of logs"}
_ORDERS = {"saliency": "By saliency", "index": "By position"}
_SHOWN = ("score", "calibration", "agreement", "first bin", "last bin", "bins", "order")


def tokens_part(loaded: Loaded) -> None:
    """Pruned sets from an eighth, a quarter and a half of the tokens against all."""
    st.markdown(
        "**How many tokens does the choice need?** Experts pruned from the first eighth, quarter "
        "and half of each corpus' tokens, compared with all tokens. A line that reaches 1 early "
        "needed no more."
    )
    runs = _runs_with_parts(loaded)
    if not runs:
        return
    part = loaded.study.cached(parts_of, next(iter(runs.values())))[0]
    options = [name for name, criterion in CRITERIA.items() if can_rank(criterion, part)]
    say_unknown("Other criteria", "beside", options, lambda name: CRITERIA[name].label)
    others = st.pills(
        "Other criteria",
        options,
        selection_mode="multi",
        default=list(CURVE_BESIDE),
        key="beside",
        bind="query-params",
        format_func=lambda name: CRITERIA[name].label,
    )
    if not can_rank(criterion := loaded.choices.ranking_criterion, part):
        st.text(f"{criterion.label} cannot rank on a part of the tokens, so it is left out.")
    chosen = tuple(name for name in others if name in options)
    if show_named("overlap-by-tokens", loaded.choosing(beside=chosen)) is not None:
        first = criterion if can_rank(criterion, part) else CRITERIA[chosen[0]]
        _command(loaded, "--parts", "--criterion", first.name)
    if not loaded.study.opened(SubsetStore).is_empty:
        show_named("loss-by-tokens", loaded)
    forms_at("explore.tokens", loaded)


def _runs_with_parts(loaded: Loaded) -> dict[str, Run]:
    """Runs with token shards; shows which runs lack them and what to do."""
    if not loaded.runs:
        inform(NO_CALIBRATION)
    runs = {corpus: run for corpus, run in loaded.runs.items() if SHARDS in run.manifest.files}
    if lacking := [literal(corpus) for corpus in loaded.runs if corpus not in runs]:
        has = "run of {} has" if len(lacking) == 1 else "runs of {} have"
        inform(f"The {has.format(', '.join(lacking))} no token shards; calibrate again.")
    return runs


def damage_part(loaded: Loaded) -> None:
    """The exact damage of removing each expert, against cheap scores."""
    st.markdown(
        "**Does a cheap score stand in for the exact damage?** The exact damage is how far a "
        "layer's output moves without the expert, summed over its tokens."
    )
    if not loaded.runs:
        inform(NO_CALIBRATION)
        return
    corpus = loaded.corpus if loaded.corpus != BLEND else next(iter(loaded.runs))
    run = data.runs_with_routing(loaded.model, CRITERIA["damage"])[corpus]
    if "damage" not in loaded.study.stats_of(run).table:
        how_to_collect(
            loaded,
            run,
            "the exact damage, which is measured on request only: it evaluates one more expert per "
            "token and layer, or several where the router's order changes",
            "damage",
        )
        return
    with st.container(border=True):
        show_named("damage-proxy", loaded, on_select=choose_in_chart)
    with st.container(border=True):
        _quality(loaded, run)
    _command(loaded, "--proxy")


def how_to_collect(loaded: Loaded, run: Run, lacking: str, group: Group) -> None:
    """Show what the statistics of a run lack, its cost, and the command that collects it.

    `group` is the statistic group to collect.
    """
    name = run.manifest.corpus
    inform(f"The statistics of {literal(name)} lack {lacking}. Collect it with:")
    source = name
    if name not in DEMO_CORPORA and name not in PRESETS:  # a file name: --corpus takes its path
        source = next((path for path in data.corpus_files() if corpus_name(path) == name), "")
        source = source or name
    request = CalibrateRequest(
        model=data.shown_model(loaded.model),
        corpus=source,
        tokens=max(run.manifest.num_tokens, 2),
        seq_len=run.manifest.settings.get("seq_len"),
        groups=(group,),
        stats_dir=data.shown_stats_dir(),
    )
    show_command(request.command())


def _quality(loaded: Loaded, run: Run) -> None:
    corpus = run.manifest.corpus
    table = loaded.study.cached(proxy_quality, loaded.study.stats_of(run), loaded.choices.gate)
    best = table.iloc[0]
    st.markdown(
        f"**Every variant as a stand-in**, on {literal(corpus)}. {best['label']} prunes "
        f"{best['overlap_50']:.0%} of what the exact damage prunes at 50%, more than any other."
    )
    labelled = table.drop(columns="criterion").rename(
        columns=_SHARES
        | {"label": "criterion", "overlap_25": "overlap at 25%", "overlap_50": "overlap at 50%"}
    )
    table_with_csv(
        labelled.round(3), "damage-proxies", "How well each variant stands in for the damage"
    )


def _command(loaded: Loaded, *words: str) -> None:
    line = ["overlap", data.shown_model(loaded.model), "--sparsity", loaded.sparsity, *words]
    if "--proxy" not in words and loaded.choices.gate != "applied":
        line += ["--gate", loaded.choices.gate]
    if stats_dir := data.shown_stats_dir():
        line += ["--stats-dir", str(stats_dir)]
    command = command_line(*line, "-o", "overlap.csv")
    show_command(command, heading="These numbers from the command line")


def bins_part(loaded: Loaded, granularity: str) -> None:
    """Records of bin-wise loss increases, and the form to measure more."""
    what = WORDS[granularity]
    st.markdown(
        f"**Does the score order {what} as the loss does?** The {what} are split into bins, and "
        "the held-out loss is measured with each bin removed (HEAPr, Figure 3). A perfect score "
        "has rank correlation 1."
    )
    every = records_of(loaded, BinsStore)
    records = [record for record in every if record.ranked.granularity == granularity]
    if records:
        _charts(loaded, records, granularity)
    else:
        inform(f"No {what} of {literal(loaded.model.name)} were measured yet; run one below.")
    st.markdown("**Measure another score**")
    action_form(loaded, "bins", f"{what} of {loaded.model.name}", granularity=granularity)
    forms_at("explore.loss", loaded)


def _charts(loaded: Loaded, records: list[BinsRecord], granularity: str) -> None:
    corpora = sorted({str(record.corpus["name"]) for record in records})
    usual = loaded.corpus if loaded.corpus in corpora else corpora[0]
    criterion = loaded.choices.criterion.name if loaded.choices.criterion else ""
    with st.container(horizontal=True, vertical_alignment="bottom"):
        corpus = choose(
            "Held-out corpus", corpora, usual, key="bins.text", bind="query-params", width=220
        )
        overview = loss_bins.overview_of(records, granularity, corpus)
        best_last = overview.iloc[::-1]  # of equal names keep the best
        names = {
            _score_label(str(r.criterion), str(r.order)): str(r.record)
            for r in best_last.itertuples()
        }
        options = list(names)[::-1]
        plan_score = _score_label(criterion, "saliency")
        first = plan_score if plan_score in names else options[0]
        score = choose("Score", options, first, key="bins.score", bind="query-params", width=260)
    st.text(loss_bins.verdict(overview))
    record = next(record for record in records if record.record_id == names[score])
    # Only for the criterion in use is there a command that draws the same.
    if record is loss_bins.record_of(records, granularity, criterion, loaded.choices.corpora):
        by_neuron = granularity == NEURON_GRANULARITY
        show_named("neuron-loss-bins" if by_neuron else "loss-bins", loaded, with_sentence=True)
    else:
        name = f"{WORDS[granularity]}-against-loss-{record.record_id}"
        show_chart(loss_bins.bins_drawing(record, name=name), with_sentence=True)
    _overview(overview)


def _score_label(criterion: str, order: str) -> str:
    return f"{criterion_label(criterion)}, {_ORDERS[order].lower()}"


def _overview(overview: pd.DataFrame) -> None:
    """All scores on this corpus, best order first."""
    table = overview.assign(
        score=[criterion_label(name) for name in overview["criterion"]],
        order=overview["order"].map({"saliency": "saliency", "index": "place"}),
        first=signed(overview["first"], 4),
        last=signed(overview["last"], 4),
    ).rename(columns={"calibrated_on": "calibration", "first": "first bin", "last": "last bin"})
    table_with_csv(
        overview,
        "loss-bins-of-all-scores",
        f"Rank correlation of {len(table)} scores with the true loss increase",
        shown=table[list(_SHOWN)],
        placeholder="-",
        column_config={
            "agreement": NumberColumn("rank correlation", format="%.2f"),
            "first bin": NumberColumn(format="%+.4f"),
            "last bin": NumberColumn(format="%+.4f"),
        },
    )
    if note := random_note(overview):
        st.text(note)


def random_note(overview: pd.DataFrame) -> str:
    """Explain why Random may rank high: it is a single draw; empty without such a row."""
    rows = overview[(overview["criterion"] == "random") & (overview["order"] == "saliency")]
    if rows.empty:
        return ""
    row = rows.iloc[0]
    limit = loss_bins.chance_agreement(int(row["bins"]))
    place = "above" if row["agreement"] > limit else "below"
    return (
        f"Random is a single draw: 19 of 20 draws stay below {limit:.2f}, this one is {place}. "
        f"Compare scores with {limit:.2f}, not with the row Random."
    )
