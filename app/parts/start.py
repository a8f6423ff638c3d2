"""Start: savings and measured loss of the plan on screen; below, its data."""

from collections import defaultdict
from statistics import median
from typing import Final

import pandas as pd
import streamlit as st
from streamlit.column_config import NumberColumn

from analysis.corpora import Count, Packing, corpus_name, is_same_corpus
from analysis.errors import UserError
from analysis.model import DEMO_MODEL
from app.charts.context import Context
from app.charts.names import criterion_label
from app.charts.overlap import pair_overlaps
from app.console import counted
from app.frame.charts import csv_button
from app.frame.controls import choose
from app.frame.job_form import offer_job, queue_button
from app.frame.notes import badge, card, inform
from app.literal import literal, literal_in_badge
from app.parts.evaluate.ask import answers_part
from app.parts.plan_bar import loss_of_plan, losses_table
from app.session import data
from app.session.data import calibration_corpora, corpus_label, losses_of, records_of
from app.session.job_queue import own_model
from app.session.plan_data import bytes_after
from app.tables.costs import SHOWN_COSTS, cost_rows
from pruning.evaluate.quality import (
    ChosenPlan,
    PlanLoss,
    RandomLoss,
    choose_best,
    is_random,
    losses_at,
)
from pruning.evaluate.record import AnswerStore
from pruning.planning.make import CurrentPlan
from pruning.planning.searches import duration_text
from pruning.requests.calibration import CalibrateRequest
from pruning.requests.model import WeightsRequest
from pruning.requests.options import DEFAULT_SEQ_LEN, DEFAULT_TOKENS
from pruning.schedules import SCHEDULES
from pruning.sizes import format_bytes

_TOKENS = (8_192, 16_384, 65_536, 262_144, 524_288, 1_048_576)
_PACKINGS: Final[dict[Packing, str]] = {
    "auto": "end to end; rows of token ids unchanged",
    "concatenate": "end to end",
    "pack": "packed, without cross-attention",
    "pad": "one per sequence",
}
_COUNTS: Final[dict[Count, str]] = {"all": "all tokens", "response": "answers only"}


def finding_part(context: Context, current_plan: CurrentPlan) -> None:
    """The finding in words, three numbers, an example, and the next step."""
    losses, share = losses_of(context.model), removed_share(context)
    loss, chance = loss_of_plan(context)
    st.markdown(
        f"## {share}: {saved_words(context, current_plan)}.\n\n"
        + " ".join(sentences(losses, loss, chance))
    )
    st.caption(meaning(context, current_plan))
    saved_column, loss_column, corpora_column = st.columns([2, 4, 3])
    with saved_column:
        before, after = context.model.checkpoint.nbytes, bytes_after(context, current_plan)
        sizes = f"{format_bytes(before)} to {format_bytes(after)}"
        card("Saved", f"{1 - after / before:.0%}", sizes)
    with loss_column, st.container(border=True, height="stretch"):
        _loss_part(loss, chance)
    with corpora_column, st.container(border=True, height="stretch"):
        _corpora_part(context, losses, loss)
    with st.container(key="see-why"):  # in the first view of a laptop
        st.page_link("views/explore.py", label="See why", icon=":material/grid_on:")
    _answers_part(context, current_plan)


def meaning(context: Context, current_plan: CurrentPlan) -> str:
    """Explain the plan's criterion and schedule, and the unit of loss."""
    criterion, schedule = context.ranking_criterion, current_plan.plan.provenance.schedule
    words = ["A nat is the unit of loss: +0.69 doubles the perplexity."]
    if schedule in SCHEDULES and schedule != "uniform":
        words.insert(0, f"{SCHEDULES[schedule].label}: {SCHEDULES[schedule].summary}.")
    if criterion.exponents is not None and not current_plan.file:
        b, *powers = criterion.exponents
        powers_by_name = zip(powers, ("gate weight", "output norm"), strict=True)
        factors = [f"{'squared ' * (power - 1)}{name}" for power, name in powers_by_name if power]
        scored = f"{'mean' if b else 'sum'} of {' times '.join(factors)} over its tokens"
        scored = scored if factors else "number of its tokens"
        words.insert(0, f"{literal(criterion.label)} scores an expert by the {scored}.")
    return " ".join(words)


def removed_share(context: Context) -> str:
    """Sparsity in words: `Half of the experts gone`."""
    what = "neurons" if context.by_neuron else "experts"
    if context.by_neuron and context.spec.budget.sparsity is None:
        unit = "parameters" if context.spec.budget.params_share else "bytes"
        return f"{context.sparsity} of the {unit} gone"
    share = "Half" if context.percent == 50 else context.sparsity
    return f"{share} of the {what} gone"


def saved_words(context: Context, current_plan: CurrentPlan) -> str:
    """Bytes before and after, in words."""
    before, after = context.model.checkpoint.nbytes, bytes_after(context, current_plan)
    if after >= before:
        return "nothing saved"
    return f"{format_bytes(before)} to {format_bytes(after)} (-{1 - after / before:.0%})"


def sentences(
    losses: tuple[PlanLoss, ...], loss: PlanLoss | None, chance: RandomLoss | None
) -> list[str]:
    """Losses of the plan, Random and a single-corpus plan, and how it was chosen."""
    if loss is None:
        return ["Its loss was not measured yet: click **Measure** above."]
    words = [
        f"On {loss.num_samples} held-out samples of each of {len(loss.change)} corpora it adds "
        f"**{loss.mean:+.2f}** to the loss on average, **{loss.worst:+.2f}** at worst, on "
        f"{literal(loss.worst_on)}."
    ]
    if loss.way:
        words.append(f"It was measured in another way than most plans: {loss.way}.")
        return words
    if chance is not None and not loss.is_random:
        draws = "one draw"
        if chance.mean_spread is not None:
            draws = f"{chance.draws} draws, SD {chance.mean_spread:.2f}"
        words.append(f"Random adds {chance.mean:+.2f} ({draws}).")
    if (alone := single_corpus(losses, loss)) is not None:
        name = alone.facts.corpora[0]
        label = literal(criterion_label(alone.facts.criterion))
        words.append(
            f"Calibrated on {literal(name)} alone, {label} keeps {literal(name)} "
            f"({alone.change[name]:+.2f}) and loses {literal(alone.worst_on)} "
            f"({alone.worst:+.2f})."
        )
    best = best_at(losses, loss.facts.removed or 0.0)
    if best is not None and best.chosen.plan == loss.plan:
        words.append(
            "It is the best plan on one half of the samples; on the held-out half it adds "
            f"{best.reported.mean:+.2f}."
        )
    return words


def best_at(losses: tuple[PlanLoss, ...], share: float) -> ChosenPlan | None:
    """The best whole-expert plan at a sparsity, see `choose_best`; Random cannot win."""
    return choose_best(
        each
        for each in losses_at(losses, share)
        if each.facts.granularity == "expert" and not each.is_random
    )


def single_corpus(losses: tuple[PlanLoss, ...], loss: PlanLoss) -> PlanLoss | None:
    """The single-corpus plan of this criterion and sparsity with the worst loss."""
    candidates = [
        each
        for each in losses_at(losses, loss.facts.removed or 0.0)
        if each.facts.criterion == loss.facts.criterion
        and each.facts.schedule in ("uniform", loss.facts.schedule)
        and len(each.facts.corpora) == 1
        and each.facts.corpora[0] in each.change
        and each.worst_on != each.facts.corpora[0]
        and not (each.way or each.missing)
    ]
    return max(candidates, key=lambda each: each.worst, default=None)


def one_corpus_or_blend(losses: tuple[PlanLoss, ...], loss: PlanLoss) -> str:
    """Loss of one criterion on single corpora and on a blend, at the sparsity of `loss`.

    The criterion of `loss`, else the one that is best on a blend; empty if none has both.
    """
    alone: defaultdict[tuple[str, ...], list[PlanLoss]] = defaultdict(list)
    blended: dict[tuple[str, ...], float] = {}
    for each in losses_at(losses, loss.facts.removed or 0.0):
        way = each.facts.criterion, each.facts.schedule, each.facts.granularity
        if each.way or each.missing or not each.facts.corpora:
            continue
        if len(each.facts.corpora) == 1:
            alone[way].append(each)
        else:
            blended[way] = min(each.mean, blended.get(way, each.mean))
    ways = [way for way in blended if len(alone[way]) > 1 and way[2] == loss.facts.granularity]
    if not ways:
        return ""
    best = min(ways, key=lambda way: (way[0] != loss.facts.criterion, blended[way]))
    plans = alone[best]
    means, worst = [each.mean for each in plans], max(plans, key=lambda each: each.worst)
    return (
        f"Calibrated on one corpus, {literal(criterion_label(best[0]))} adds {min(means):+.2f} to "
        f"{max(means):+.2f} on average, up to {worst.worst:+.2f} on {literal(worst.worst_on)}; on "
        f"a blend **{blended[best]:+.2f}**."
    )


def _loss_part(loss: PlanLoss | None, chance: RandomLoss | None) -> None:
    way = f", {literal(loss.way)}" if loss and loss.way else ""
    st.markdown(f"**Loss increase** in nats per token{way}")
    if loss is None:
        st.text("Not measured.")
        return
    random_row = {} if chance is None else {"Random": chance.change}
    losses_table(loss.full, {"this plan": loss.change, **random_row})


def _corpora_part(context: Context, losses: tuple[PlanLoss, ...], loss: PlanLoss | None) -> None:
    st.markdown("**Does the calibration corpus matter?**")
    if loss is not None and (words := one_corpus_or_blend(losses, loss)):
        st.markdown(words)
    try:
        means = pair_overlaps(context)[["overlap", "chance"]].mean()
    except UserError as error:
        st.text(str(error))
        return
    st.markdown(
        f"Two corpora agree on **{means['overlap']:.0%}** of the experts that "
        f"{literal(context.ranking_criterion.label)} prunes; chance alone gives "
        f"{means['chance']:.0%}."
    )


def _answers_part(context: Context, current_plan: CurrentPlan) -> None:
    """The newest answers of the original model, this plan and Random."""
    records = sorted(records_of(context, AnswerStore), key=lambda each: each.created_at)
    newest = next(
        (each for each in records[::-1] if each.plan_digest == current_plan.plan.digest), None
    )
    if newest is None:
        return
    chance = [
        each
        for each in records
        if (each.prompt, each.settings) == (newest.prompt, newest.settings)
        and is_random(each.plan.criterion)
        and each.plan.removed == newest.plan.removed
        and each is not newest
    ]
    with st.container(border=True):
        st.markdown("**Answers**: text after the first difference is highlighted.")
        answers_part(newest, *chance[:1])


def runs_table(context: Context) -> None:
    """One row per run of any model, with what it cost; the model on screen first."""
    runs, problems = data.all_runs()
    st.header("Statistics found")
    table = pd.DataFrame(cost_rows(runs, context.model.identity))
    if runs:
        st.dataframe(
            table,
            hide_index=True,
            # Columns that fit a narrow window; the file has all.
            column_order=SHOWN_COSTS,
            placeholder="-",  # statistics of weights read no tokens
            alt=f"{len(runs)} cached runs and their cost",
            column_config={
                "tokens": NumberColumn(format="localized"),
                "tokens/s": NumberColumn(format="%.0f"),
                "seconds": NumberColumn(format="%.3g"),
                "peak MiB": NumberColumn(format="localized"),
            },
        )
    else:
        inform("No statistics yet: collect them below.")
    for problem in problems:
        st.warning(literal(problem), icon=":material/warning:")
    with st.container(horizontal=True, vertical_alignment="center"):
        st.code("moeprune runs list", language=None, width="content")
        if runs:
            csv_button(table, "runs")


def checks(context: Context) -> None:
    """Checks of the model before trusting a ranking."""
    with st.container(horizontal=True):
        for corpus, run in context.runs.items():
            count = int((data.expert_stats(run).table["num_tokens"] == 0).sum())
            who = f"{counted(count, 'expert')} never" if count else "every expert"
            badge(f"{who} routed on {literal_in_badge(corpus)}", is_good=not count)
    if context.model.name == DEMO_MODEL:
        st.text("A small model trained for this demo; its rankings are its own.")


def calibrate_form(context: Context) -> None:
    """Form that queues a calibration."""
    st.markdown("**Collect statistics**: run the model once over a corpus.")
    with st.form("start.calibrate", border=False):
        corpus = st.selectbox(
            "Corpus", calibration_corpora(), key="start.corpus", format_func=corpus_label
        )
        first, second = st.columns(2)
        tokens = first.select_slider(
            "Tokens", _TOKENS, value=DEFAULT_TOKENS, key="start.tokens", format_func="{:,}".format
        )
        seq_len = second.select_slider(
            "Sequence length",
            (128, 256, 512, 1024, 2048),
            value=DEFAULT_SEQ_LEN,
            key="start.seq_len",
        )
        with st.expander("Documents and answers"):
            packing = choose(
                "Documents",
                tuple(_PACKINGS),
                format_func=_PACKINGS.__getitem__,
                key="start.packing",
            )
            count = choose(
                "Counted", tuple(_COUNTS), format_func=_COUNTS.__getitem__, key="start.count"
            )
        sent = queue_button("Run calibration")
    request = CalibrateRequest(
        **own_model(context),
        corpus=corpus,
        tokens=max(tokens, seq_len),
        seq_len=seq_len,
        packing=packing,
        count=count,
    )
    st.caption(known_words(context, request))
    offer_job(context, request, context.model.name, sent=sent)


def known_words(context: Context, request: CalibrateRequest) -> str:
    """Time estimate from existing runs, and whether one of them is the same."""
    runs, _ = data.all_runs()
    corpus, tokens, words = corpus_name(request.corpus), request.tokens or 0, []
    for run in runs:
        manifest = run.manifest
        is_same = is_same_corpus(manifest.corpus, corpus)
        is_same = is_same and manifest.model.identity == context.model.identity
        if is_same and manifest.num_tokens >= tokens:
            words.append(
                f"You have this already: {manifest.num_tokens:,} tokens of {literal(corpus)}."
            )
            break
    rows = [row for row in cost_rows(runs, context.model.identity) if row["fits"] == "this model"]
    speeds = [row["tokens/s"] for row in rows if row["tokens/s"]]
    if speeds:
        seconds = tokens / median(speeds)
        words.append(f"It takes about {duration_text(seconds)}, as fast as the runs above.")
    return " ".join(words)


def weights_button(context: Context) -> None:
    """Button to measure the weights, or a note that they are measured."""
    st.markdown("**Weights**: AIMER, Magnitude and Hoyer need no corpus.")
    sent = False
    if data.weight_run(context.model) is not None:
        badge("weights measured")
    else:
        sent = st.button("Measure weights", icon=":material/play_arrow:", key="start.weights")
    offer_job(context, WeightsRequest(**own_model(context)), context.model.name, sent=sent)
