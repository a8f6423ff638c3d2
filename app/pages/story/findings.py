"""The findings of the story. Their controls are their own: they begin with those of the plan."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import streamlit as st

from analysis.criteria import NEURON_CRITERIA, Criterion, criterion_label
from analysis.errors import StatsError, UserError
from app.charts import kept_by, neuron_cut
from app.charts.chart import Drawing, of_corpora
from app.charts.corpus_losses import corpus_losses
from app.charts.listing import CHARTS
from app.charts.schedules import sides
from app.charts.stratification import SCALES
from app.charts.variant_losses import VARIANT_MAPS
from app.choices import BLEND, CONSTANT, StrataChoice
from app.literal import literal
from app.loaded import CurrentPlan, Loaded, loss_of_plan, loss_text
from app.report import sentences
from app.session.controls import asked_spec
from app.session.data import loaded_for
from app.session.plan_data import bytes_after, current_plan, neuron_sizes
from app.session.state import (
    EXPONENTS,
    controls_on_page,
    corpus_options,
    exponent_controls,
    one_of,
    page_choices,
    slider_steps,
)
from app.widgets.links import link_to
from app.widgets.plan_bar import loss_words, programs
from app.widgets.report import decision_button
from pruning.plan.units import NeuronScope
from pruning.planning.choice import (
    HAND,
    SCHEDULE_NAMES,
    SCOPES,
    schedule_label,
    scopes_of,
)
from pruning.records.quality import loss_of
from pruning.search.store import SEARCH

Value = TypeVar("Value")


@dataclass(frozen=True, eq=False)
class Finding:
    """What is shown: a sentence in Markdown, and a chart if there is data for one."""

    sentence: str
    chart: Drawing | None
    # Controls of the pages that ask for the plan shown; empty if it is the session's.
    controls: Mapping[str, Any] = field(default_factory=dict)
    # Of the finding's own controls, those that change when that plan is used.
    afterwards: Mapping[str, Any] = field(default_factory=dict)


def _other(
    loaded: Loaded, controls: Mapping[str, Any]
) -> tuple[Loaded, CurrentPlan, dict[str, Any]]:
    """With other values of these controls: all of it, its plan, and the controls that differ.

    Counts by hand and searches belong to one plan; every other begins with the uniform schedule.
    """
    state = controls_on_page()
    changed = {key: value for key, value in controls.items() if state.get(key) != value}
    if not changed and loaded.shown:
        return loaded, loaded.shown, {}
    if state.get("schedule") in (HAND, SEARCH):
        changed = {"schedule": "uniform", **changed}
    asked = asked_spec(state | changed, loaded.model, list(loaded.runs))
    other = loaded_for(loaded.model, page_choices(asked))
    plan = current_plan(other)
    return replace(other, shown=plan), plan, changed


def _choose(
    label: str,
    key: str,
    options: Sequence[Value],
    words: Callable[[Value], str] = str,
    usual: Value | None = None,
) -> Value:
    """Draw a choice that begins with `usual`, else with the value of the plan's control `key`."""
    state, name = st.session_state, f"story.{key}"
    # Not as a default, beside which a button may not set the choice.
    if state.get(name) not in options:
        state[name] = one_of(state.get(key), options) if usual is None else usual
    chosen = st.segmented_control(label, options, key=name, format_func=words, required=True)
    return one_of(chosen, options)


def saving(loaded: Loaded) -> Finding:
    """What pruning saves, at a sparsity."""
    state = st.session_state
    percent = st.select_slider(
        "Sparsity",
        slider_steps(loaded.model, state["budget"], by_neuron=loaded.choices.spec.by_neuron),
        state["sparsity"],
        key="story.sparsity",
        format_func=lambda value: f"{value}%",
        width=560,
    )
    other, plan, changed = _other(loaded, {"sparsity": percent})
    words = literal(sentences.saving(other, plan, bytes_after(other, plan)))
    try:
        chart = CHARTS["loss-by-size"].draw(other)
    except UserError:  # nothing was evaluated
        chart = CHARTS["sizes"].draw(other)
    return Finding(words, chart, changed)


def criteria(loaded: Loaded) -> Finding:
    """What another criterion decides differently: other exponents, or another one of neurons."""
    own = loaded.choices.ranking_criterion
    if loaded.choices.spec.by_neuron:
        return _neuron_criteria(loaded, own)
    chosen = _exponents(_rival(loaded, own.exponents))
    if chosen == CONSTANT:
        return Finding(sentences.SAME_SCORE, _variants(loaded, chosen))
    if chosen == own.exponents:
        return Finding(sentences.own_criterion(own.label), _variants(loaded, chosen))
    other, _, changed = _other(loaded, exponent_controls(chosen))
    chart = kept_by.draw_plan_pair(other, loaded)
    count = int((chart.table["kept_by"] == "only A").sum())
    label = other.choices.ranking_criterion.label
    sentence = sentences.disagreement(
        label, own.label, f"{count:,} experts", _instead(other, loaded)
    )
    # Once it is used, it is compared with the plan that it replaced.
    return Finding(sentence, chart, changed, _toggles(own.exponents or _rival(loaded, chosen)))


def _rival(loaded: Loaded, exponents: tuple[int, ...] | None) -> tuple[int, int, int]:
    """The exponents to compare with these."""
    rivals = (loaded.choices.baseline.exponents, (0, 0, 0), (1, 1, 1))
    return next(rival for rival in rivals if rival and rival != exponents)


def _exponents(usual: tuple[int, int, int]) -> tuple[int, int, int]:
    """Draw the three exponents."""
    b = _choose("b", "b", (0, 1), usual=usual[0])
    alpha, beta = (
        _choose(letter, key, (0, 1, 2), usual=value)
        for letter, key, value in zip("\u03b1\u03b2", EXPONENTS[1:], usual[1:], strict=True)
    )
    return b, alpha, beta


def _toggles(exponents: tuple[int, int, int]) -> dict[str, int]:
    return {f"story.{key}": value for key, value in zip(EXPONENTS, exponents, strict=True)}


def _variants(loaded: Loaded, marked: tuple[int, int, int]) -> Drawing:
    """The map of all variants, this one framed; what the plan keeps if nothing tells them apart."""
    for name, figure in VARIANT_MAPS.items():
        with suppress(UserError):  # too few were measured, or calibrated
            chart = CHARTS[name].draw(loaded)
            return replace(chart, figure=partial(figure, chart.table, selected=marked))
    return kept_by.draw_plan_pair(loaded, loaded)


def _instead(mine: Loaded, theirs: Loaded) -> str:
    """The losses of both plans, if they were measured."""
    losses = (sentences.comparable(loss_of_plan(one)[0]) for one in (mine, theirs))
    return sentences.instead_of(*losses)


def _neuron_criteria(loaded: Loaded, own: Criterion) -> Finding:
    """How many neurons another criterion decides differently."""
    family = own.name.partition(":")[0]
    rivals = [name for name in NEURON_CRITERIA if name != family]
    name = _choose("Instead", "neurons", rivals, criterion_label, rivals[0])
    other, _, changed = _other(loaded, {"neurons": name})
    gone, same = neuron_cut.pruned(loaded), neuron_cut.pruned(other)
    units = f"{int((gone & ~same).sum()):,} neurons"
    sentence = sentences.disagreement(
        criterion_label(name), own.label, units, _instead(other, loaded)
    )
    return Finding(sentence, CHARTS["neurons-kept"].draw(other), changed, {"story.neurons": family})


def stratification(loaded: Loaded) -> Finding:
    """Whether AIMER and Magnitude separate the experts of a layer."""
    scale = _choose("Colours", "scale", list(SCALES), lambda name: SCALES[name][0], "rescaled")
    chosen = loaded.choosing(strata=StrataChoice(scale=scale))
    chart = CHARTS["stratification"].draw(chosen)
    return Finding(literal(chart.alt), chart)


def corpora(loaded: Loaded) -> Finding:
    """What the calibration corpus costs on each corpus."""
    own, losses = loaded.routed_criterion(), loaded.study.losses
    if len(loaded.runs) < 2:
        raise StatsError(
            f"{loaded.model.name} is calibrated on {len(loaded.runs)} corpus; calibrate on another "
            "on the page Start to see what the corpus decides."
        )
    options = corpus_options(loaded.runs)
    corpus = _choose("Calibrated on", "corpus", options, literal)
    other, _, changed = _other(loaded, {"corpus": corpus})
    measured = {}
    for name in options:
        loss = loss_of(losses, _other(loaded, {"corpus": name})[1].plan.digest)
        if comparable_loss := sentences.comparable(loss):
            measured[name] = comparable_loss
    if corpus in measured:
        text = f"all {len(loaded.runs)} corpora" if corpus == BLEND else corpus
        sentence = literal(sentences.calibrated_on(text, own.label, measured[corpus]))
        changes = {name: plan_loss.change for name, plan_loss in measured.items()}
        chart = corpus_losses(changes, corpus, of_corpora(loaded, "loss increase"))
        return Finding(sentence, chart, changed)
    by_neuron = loaded.choices.spec.by_neuron
    chart = CHARTS["neuron-overlap" if by_neuron else "overlap"].draw(other)
    return Finding(literal(sentences.not_measured(chart.alt)), chart, changed)


def budget(loaded: Loaded) -> Finding:
    """How many experts each layer keeps under a schedule, or neurons under a scope."""
    if loaded.choices.spec.by_neuron:
        return _scopes(loaded)
    counts = sides(loaded).counts
    options = [name for name in SCHEDULE_NAMES if name in set(counts["schedule"])]
    name = _choose("Schedule", "schedule", options, schedule_label)
    other, plan, changed = _other(loaded, {"schedule": name})
    loss = loss_text(other, *loss_of_plan(other))
    sentence = sentences.spread_of_budget(schedule_label(name), plan.kept.values(), loss)
    return Finding(literal(sentence), CHARTS["schedules"].draw(other), changed)


def _scopes(loaded: Loaded) -> Finding:
    """What each layer keeps of its neurons under a scope."""
    options = {
        str(scope): SCOPES[scope] for scope in scopes_of(loaded.choices.ranking_criterion.name)
    }
    name = _choose("Neurons compete within", "neuron_scope", list(options), options.__getitem__)
    other, plan, changed = _other(loaded, {"neuron_scope": name})
    shares = 1 - neuron_sizes(other, plan).layers["share"]
    low, high = f"{shares.min():.0%}", f"{shares.max():.0%}"
    spread = low if low == high else f"{low} to {high}"
    words = f"{options[name]}: layers keep {spread} of their neurons"
    words += f"; {loss_words(other, *loss_of_plan(other))}."
    return Finding(words, CHARTS["neuron-layers"].draw(other), changed)


def shipping(loaded: Loaded) -> Finding:
    """What the export weighs, what it costs, and which engines load it."""
    key, even, uneven, words = "schedule", "uniform", "global", "Equal counts in every layer"
    if loaded.choices.spec.by_neuron:
        key, even, words = "neuron_scope", str(NeuronScope.EXPERT), "Equal widths of all experts"
        uneven = str(scopes_of(loaded.choices.ranking_criterion.name)[0])
    usual = st.session_state[key]
    is_even = st.toggle(words, usual == even, key="story.even")
    other, plan, changed = _other(
        loaded, {key: even if is_even else uneven if usual == even else usual}
    )
    sizes = loaded.model.checkpoint.nbytes, bytes_after(other, plan)
    loss = loss_text(other, *loss_of_plan(other))
    sentence = sentences.shipped(sizes, loss, programs(other, plan).words)
    decision_button(other, plan, "report.story")
    link_to("export", "Export", "output")
    return Finding(literal(sentence), CHARTS["sizes"].draw(other), changed)
