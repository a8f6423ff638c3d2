"""Savings and measured loss of the plan on screen."""

from collections import defaultdict

import streamlit as st

from analysis.errors import UserError
from app.charts.front_words import bits_alone
from app.charts.names import criterion_label
from app.charts.overlap import pair_overlaps
from app.literal import literal
from app.loaded import Loaded
from app.session.data import losses_of, records_of
from app.session.plan_data import bytes_after
from app.widgets.answers import answers_part
from app.widgets.charts import chart_card
from app.widgets.links import link_to
from app.widgets.notes import card
from app.widgets.plan_bar import loss_of_plan, losses_table
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
from pruning.schedules import SCHEDULES
from pruning.sizes import format_bytes


def finding_part(loaded: Loaded, current_plan: CurrentPlan) -> None:
    """The finding in words, three numbers, an example, and the next step."""
    losses, share = losses_of(loaded.model), removed_share(loaded)
    loss, chance = loss_of_plan(loaded)
    st.markdown(
        f"## {share}: {saved_words(loaded, current_plan)}.\n\n"
        + " ".join(sentences(losses, loss, chance))
    )
    st.caption(meaning(loaded, current_plan))
    saved_column, loss_column, corpora_column = st.columns([2, 4, 3])
    with saved_column:
        before, after = loaded.model.checkpoint.nbytes, bytes_after(loaded, current_plan)
        sizes = f"{format_bytes(before)} to {format_bytes(after)}"
        card("Saved", f"{1 - after / before:.0%}", sizes)
    with loss_column, st.container(border=True, height="stretch"):
        _loss_part(loss, chance)
    with corpora_column, st.container(border=True, height="stretch"):
        _corpora_part(loaded, losses, loss)
    with st.container(key="see-why"):  # in the first view of a laptop
        link_to("explore", "See why", "grid_on")
    chart_card("loss-by-size", loaded, "**What each size costs**", says=True)
    _answers_part(loaded, current_plan)


def meaning(loaded: Loaded, current_plan: CurrentPlan) -> str:
    """Explain the plan's criterion and schedule, and the unit of loss."""
    criterion, schedule = loaded.choices.ranking_criterion, current_plan.plan.provenance.schedule
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
    if repair := current_plan.plan.repair:
        words.append(f"The kept experts are repaired, {literal(repair.words)}.")
    return " ".join(words)


def removed_share(loaded: Loaded) -> str:
    """Sparsity in words: `Half of the experts gone`."""
    what = "neurons" if loaded.choices.spec.by_neuron else "experts"
    if loaded.choices.spec.by_neuron and loaded.choices.spec.budget.sparsity is None:
        unit = "parameters" if loaded.choices.spec.budget.params_share else "bytes"
        return f"{loaded.sparsity} of the {unit} gone"
    share = "Half" if loaded.percent == 50 else loaded.sparsity
    return f"{share} of the {what} gone"


def saved_words(loaded: Loaded, current_plan: CurrentPlan) -> str:
    """Bytes before and after, in words."""
    before, after = loaded.model.checkpoint.nbytes, bytes_after(loaded, current_plan)
    if after >= before:
        return "nothing saved"
    return f"{format_bytes(before)} to {format_bytes(after)} (-{1 - after / before:.0%})"


def sentences(
    losses: tuple[PlanLoss, ...], loss: PlanLoss | None, chance: RandomLoss | None
) -> list[str]:
    """Losses of the plan, Random and a single-corpus plan, and how it was chosen.

    A repaired plan is compared with repaired ones, but for Random.
    """
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
        words.append(f"{loss.random_name} adds {chance.mean:+.2f} ({draws}).")
    if (alone := single_corpus(losses, loss)) is not None:
        name = alone.facts.corpora[0]
        label = literal(criterion_label(alone.facts.criterion) + alone.facts.variant_words)
        words.append(
            f"Calibrated on {literal(name)} alone, {label} keeps {literal(name)} "
            f"({alone.change[name]:+.2f}) and loses {literal(alone.worst_on)} "
            f"({alone.worst:+.2f})."
        )
    at_share = losses_at(losses, loss.facts.removed or 0.0)
    rivals = tuple(each for each in at_share if each.is_repaired == loss.is_repaired)
    best = best_at(rivals, loss.facts.removed or 0.0)
    if best is not None and best.chosen.plan == loss.plan:
        kind = "repaired " if loss.is_repaired else "unrepaired "
        kind = kind if len(rivals) < len(at_share) else ""
        words.append(
            f"It is the best {kind}plan on one half of the samples; on the held-out half it adds "
            f"{best.reported.mean:+.2f}."
        )
    if in_bits := bits_alone(losses):
        words.append(f"Without pruning, {in_bits} (simulated).")
    return words


def _alike(losses: tuple[PlanLoss, ...], loss: PlanLoss) -> tuple[PlanLoss, ...]:
    """The plans at the sparsity of `loss` that are repaired as it is, or as it is not."""
    at_share = losses_at(losses, loss.facts.removed or 0.0)
    return tuple(each for each in at_share if each.facts.variant_words == loss.facts.variant_words)


def best_at(losses: tuple[PlanLoss, ...], share: float) -> ChosenPlan | None:
    """The best whole-expert plan at a sparsity, see `choose_best`; Random cannot win."""
    return choose_best(
        each
        for each in losses_at(losses, share)
        if each.facts.granularity == "expert" and not each.is_random
    )


def single_corpus(losses: tuple[PlanLoss, ...], loss: PlanLoss) -> PlanLoss | None:
    """The single-corpus plan of this criterion and sparsity with the worst loss; see `_alike`."""
    candidates = [
        each
        for each in _alike(losses, loss)
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

    The criterion of `loss`, else the one that is best on a blend; empty if none has both. For the
    plans see `_alike`.
    """
    alone: defaultdict[tuple[str, ...], list[PlanLoss]] = defaultdict(list)
    blended: dict[tuple[str, ...], float] = {}
    for each in _alike(losses, loss):
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
    plans, repair = alone[best], literal(loss.facts.variant_words)
    means, worst = [each.mean for each in plans], max(plans, key=lambda each: each.worst)
    return (
        f"Calibrated on one corpus, {literal(criterion_label(best[0]))}{repair} adds "
        f"{min(means):+.2f} to {max(means):+.2f} on average, up to {worst.worst:+.2f} on "
        f"{literal(worst.worst_on)}; on a blend **{blended[best]:+.2f}**."
    )


def _loss_part(loss: PlanLoss | None, chance: RandomLoss | None) -> None:
    way = f", {literal(loss.way)}" if loss and loss.way else ""
    st.markdown(f"**Loss increase** in nats per token{way}")
    if loss is None:
        st.text("Not measured.")
        return
    random_row = {} if chance is None else {loss.random_name: chance.change}
    losses_table(loss.full, {"this plan": loss.change, **random_row})


def _corpora_part(loaded: Loaded, losses: tuple[PlanLoss, ...], loss: PlanLoss | None) -> None:
    st.markdown("**Does the calibration corpus matter?**")
    if loss is not None and (words := one_corpus_or_blend(losses, loss)):
        st.markdown(words)
    try:
        means = pair_overlaps(loaded)[["overlap", "chance"]].mean()
    except UserError as error:
        st.text(str(error))
        return
    st.markdown(
        f"Two corpora agree on **{means['overlap']:.0%}** of the experts that "
        f"{literal(loaded.choices.ranking_criterion.label)} prunes; chance alone gives "
        f"{means['chance']:.0%}."
    )


def _answers_part(loaded: Loaded, current_plan: CurrentPlan) -> None:
    """The newest answers of the original model, this plan and Random."""
    records = sorted(records_of(loaded, AnswerStore), key=lambda each: each.created_at)
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
        and not each.plan.repair
        and each is not newest
    ]
    with st.container(border=True):
        st.markdown("**Answers**: text after the first difference is highlighted.")
        answers_part(newest, *chance[:1])
