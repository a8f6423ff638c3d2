"""The plan on screen: one picture, one answer, three sentences."""

from functools import partial
from typing import Any, Final

import streamlit as st

from analysis.criteria import CRITERIA, criterion_label
from analysis.errors import UserError
from analysis.model.loadable import unloadable
from app.charts.listing import CHARTS
from app.charts.loss_by_size import clicked_plan
from app.charts.overlap import pair_overlaps
from app.literal import literal
from app.loaded import CurrentPlan, Loaded, loss_of_plan
from app.report.sentences import headline
from app.session.data import records_of
from app.session.job_queue import own_model, queue, shown_request
from app.session.measured_plan import open_measured, why_not_clickable, why_not_shown
from app.session.plan_data import bytes_after
from app.session.prompts import own_words, shown_unasked
from app.widgets.answers import answers_part, pruned_answer
from app.widgets.charts import show_chart
from app.widgets.job_panel import own_job_part
from app.widgets.links import link_to
from app.widgets.plan_bar import programs, quality_warning
from pruning.actions.ask import AskRequest
from pruning.plan.plan import NEURON_GRANULARITY
from pruning.planning.choice import schedule_words
from pruning.planning.front_words import bits_alone
from pruning.records.kept_answers import AnswerRecord, AnswerStore
from pruning.records.quality import (
    LossIncrease,
    PlanLoss,
    RandomLoss,
    is_random,
    losses_at,
)
from pruning.records.right_of_plans import right_rows
from pruning.serving.engines import readers_of_layers
from pruning.spec.base import validated

_TOKENS: Final = 48  # of an answer to a person's own prompt
_EXCERPT: Final = 36  # characters of an answer


def finding_part(loaded: Loaded, current_plan: CurrentPlan) -> None:
    """Headline, loss by size, answers to a prompt; what suffers, why, and the way to Export."""
    losses, (loss, chance) = loaded.study.losses, loss_of_plan(loaded)
    after = bytes_after(loaded, current_plan)
    st.title(headline(loaded, current_plan, after), anchor=False)
    quality_warning(loaded)
    chart_column, words_column = st.columns([3, 2])
    with chart_column:
        _picture(loaded)
    with words_column:
        with st.container(border=True):
            _answers_part(loaded, current_plan)
        st.markdown(suffering(loss or loaded.predicted), help=cost_note(losses, loss, chance))
        st.markdown(single_corpus_words(losses, loss) or pair_words(loaded))
        with st.container(horizontal=True, vertical_alignment="center"):
            _ship_part(loaded, current_plan, losses, loss)


def _picture(loaded: Loaded) -> None:
    """The chart; without evaluations, what makes one."""
    try:
        chart = CHARTS["loss-by-size"].draw(loaded)
    except UserError as error:
        st.text(str(error))
        return
    measured = set(chart.table["plan"])
    plans = [loss for loss in loaded.study.losses if loss.plan in measured]
    figure = partial(chart.figure, clicks=why_not_clickable(loaded, plans))
    show_chart(chart, figure=figure, on_select=partial(_take_clicked, loaded))


def _take_clicked(loaded: Loaded, selection: object) -> None:
    """Show the plan of the mark that was clicked."""
    digest, bits = clicked_plan(selection)
    if digest:
        open_measured(loaded, digest, bits)


def cost_note(
    losses: tuple[PlanLoss, ...], loss: PlanLoss | None, chance: RandomLoss | None
) -> str:
    """The loss on each corpus, what chance costs, on what that was measured, and fewer bits."""
    if loss is None:
        return "Its loss was not measured yet: click **Measure** above."
    words = f"Loss {loss.mean:+z.2f} nats per token: {_by_corpus(loss)}; the original's is "
    words += ", ".join(f"{literal(name)} {full:.2f}" for name, full in loss.full.items()) + ". "
    if chance is not None and not loss.is_random:
        drawn = f"mean of {chance.draws} draws" if chance.draws > 1 else "one draw"
        words += f"{loss.random_name} at the same size: {chance.mean:+z.2f} ({drawn}). "
    way = f", in another way than most plans: {literal(loss.way)}" if loss.way else ""
    words += f"Measured on {loss.count.words} or more of each held-out corpus{way}."
    for row in right_rows(loss, losses):
        words += f"\n\nRight answers, {literal(row.corpus)}: {row.words}."
    in_bits = bits_alone(losses)
    return f"{words} Without pruning, {in_bits} (simulated)." if in_bits else words


def suffering(loss: LossIncrease | None) -> str:
    """Where the original's loss grows most in proportion, if measured."""
    if loss is None:
        return "Its loss is not measured yet."
    if not isinstance(loss, PlanLoss):
        return f"Predicted, not measured: {_by_corpus(loss)}."
    grown = {name: 1 + loss.change[name] / full for name, full in loss.full.items() if full > 0}
    if not grown:
        return f"{_by_corpus(loss)}."
    most = max(grown, key=grown.__getitem__)
    return f"**{literal(most)} suffers most in proportion**: x{grown[most]:.1f}."


def _by_corpus(loss: LossIncrease) -> str:
    """The loss increase on each corpus, the largest first."""
    ordered = sorted(loss.change, key=loss.change.__getitem__, reverse=True)
    return ", ".join(f"{literal(name)} {loss.change[name]:+z.2f}" for name in ordered)


def single_corpus_words(losses: tuple[PlanLoss, ...], loss: PlanLoss | None) -> str:
    """What calibration on one corpus costs the others; empty if that was not measured."""
    if loss is None or (alone := single_corpus(losses, loss)) is None:
        return ""
    name, worst_on = literal(alone.facts.corpora[0]), literal(alone.worst_on)
    return f"**Calibrated on {name} alone**: {alone.worst:+z.2f} on {worst_on}."


def pair_words(loaded: Loaded) -> str:
    """Which corpora need the same experts."""
    try:
        pairs = pair_overlaps(loaded).sort_values("overlap", ascending=False, kind="stable")
    except UserError as error:
        return literal(error)
    if pairs.empty:
        return "Calibrate on a second corpus to see what the choice depends on."
    parts = [
        f"{literal(row['corpus_a'])} and {literal(row['corpus_b'])} {row['overlap']:.0%}"
        for row in (pairs.iloc[0], pairs.iloc[-1])
    ]
    return (
        f"Pruned by both: {', '.join(dict.fromkeys(parts))}; chance {pairs['chance'].mean():.0%}."
    )


def single_corpus(losses: tuple[PlanLoss, ...], loss: PlanLoss) -> PlanLoss | None:
    """The single-corpus plan of this criterion and sparsity with the worst loss."""
    candidates = [
        candidate
        for candidate in losses_at(losses, loss.facts.removed or 0.0)
        if candidate.facts.variant_words == loss.facts.variant_words
        and candidate.facts.criterion == loss.facts.criterion
        and candidate.facts.schedule in ("uniform", loss.facts.schedule)
        and len(candidate.facts.corpora) == 1
        and candidate.facts.corpora[0] in candidate.change
        and candidate.worst_on != candidate.facts.corpora[0]
        and not (candidate.way or candidate.missing)
    ]
    return max(candidates, key=lambda candidate: candidate.worst, default=None)


def _ship_part(
    loaded: Loaded,
    current_plan: CurrentPlan,
    losses: tuple[PlanLoss, ...],
    loss: PlanLoss | None,
) -> None:
    """The best plan of the other kind of layers, and the way to Export.

    What speaks against shipping it, the line on top says.
    """
    if current_plan.plan.named_bits:
        st.text("An export has the weights as they are, and engines' own tools give fewer bits.")
    elif not programs(loaded, current_plan).words:
        st.text("No engine was tried with such an export.")
    if loss is not None and current_plan.plan.granularity != NEURON_GRANULARITY:
        _other_layers(loaded, losses, loss, is_even=len(set(current_plan.kept.values())) == 1)
    link_to("export", "Export", "output")


def _other_layers(
    loaded: Loaded, losses: tuple[PlanLoss, ...], loss: PlanLoss, *, is_even: bool
) -> None:
    """Offer the best plan with uneven layers if these are even, else the best with even ones."""
    rivals = [
        rival
        for rival in losses_at(losses, loss.facts.removed or 0.0)
        if (asked := rival.facts.asked) is not None
        and asked.leaves_layers_alike != is_even
        and not why_not_shown(loaded, rival)
        and asked.ranking.criterion in CRITERIA
        and not (
            asked.by_neuron or rival.is_random or rival.is_repaired or rival.way or rival.missing
        )
    ]
    other = min(rivals, key=lambda rival: rival.mean, default=None)
    if other is None or (is_even and other.mean >= loss.mean):
        return
    spread = schedule_words(other.facts.schedule) or "equal counts"
    label = f"{criterion_label(other.facts.criterion)}, {spread}: {other.mean:+z.2f}"
    engines = readers_of_layers(loaded.model, is_even=not is_even)
    st.button(
        literal(f"{label}, {', '.join(engines.plain) or 'remote code'}"),
        key="start.other",
        icon=":material/swap_horiz:",
        type="tertiary",
        help=f"Read by {engines.words}." if engines.words else None,
        on_click=open_measured,
        args=(loaded, other.plan),
    )


def _answers_part(loaded: Loaded, current_plan: CurrentPlan) -> None:
    """A field for a prompt, and the newest answers of the original model, this plan and Random."""
    _prompt_form(loaded, current_plan)
    job = own_job_part("ask")
    if job is not None and job.request.get("prompt"):
        return  # an older answer would stand below the new prompt
    own_prompts = own_words()
    records = shown_unasked(records_of(loaded, AnswerStore), AnswerStore, own_prompts)
    # The last prompt of this session counts before older ones, whenever they were answered.
    records.sort(key=lambda record: (record.prompt in own_prompts[-1:], record.created_at))
    digest = current_plan.plan.in_own_bits.digest
    newest = next((record for record in records[::-1] if record.plan_digest == digest), None)
    if newest is None:
        st.text("No answers of this plan yet.")
        return
    answers_part(newest, "This plan", most=_EXCERPT)
    is_cut = any(len(answer.text) > _EXCERPT for answer in newest.answers)
    others = [*_other_version(records, newest)[-1:], *_chance(records, newest)[:1]]
    if not (is_cut or others):
        return
    with st.expander("Answers in full" if is_cut else "Other answers"):
        if is_cut:
            answers_part(newest)
        for other in others:
            pruned_answer(other)


def _other_version(records: list[AnswerRecord], newest: AnswerRecord) -> list[AnswerRecord]:
    """The answers to the same prompt of the same plan without its repair, or repaired."""
    return [
        record
        for record in records
        if (record.prompt, record.settings) == (newest.prompt, newest.settings)
        and record.plan.spec
        and record.plan.spec == newest.plan.spec
        and bool(record.plan.repair) != bool(newest.plan.repair)
    ]


def _chance(records: list[AnswerRecord], newest: AnswerRecord) -> list[AnswerRecord]:
    """The answers of Random at the same sparsity to the same prompt."""
    return [
        record
        for record in records
        if (record.prompt, record.settings) == (newest.prompt, newest.settings)
        and is_random(record.plan.criterion)
        and record.plan.removed == newest.plan.removed
        and not record.plan.repair
        and record is not newest
    ]


def _prompt_form(loaded: Loaded, current_plan: CurrentPlan) -> None:
    """Ask the original model and this plan."""
    if unloadable(loaded.model):
        return
    with st.form("start.ask", border=False), st.container(horizontal=True):
        prompt = st.text_input(
            "Your own prompt",
            key="start.prompt",
            max_chars=20_000,
            placeholder="Ask the original and this plan",
            label_visibility="collapsed",
        )
        sent = st.form_submit_button("Ask", icon=":material/forum:")
    if not sent or not prompt.strip():
        return
    fields: dict[str, Any] = {
        **own_model(loaded),
        "prompt": prompt,
        "plans": (current_plan.plan.in_own_bits.to_dict(),),
        "max_new_tokens": _TOKENS,
    }
    request = validated(AskRequest, fields)
    command = shown_request(request).command((current_plan.file_name,))
    queue(request, " ".join(prompt.split())[:60], command)
