"""The findings of the story. Their controls are their own: they begin with those of the plan."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import streamlit as st

from analysis.criteria import NEURON_CRITERIA, Criterion
from analysis.errors import StatsError, UserError
from app.charts import neuron_cut
from app.charts.chart import Drawing
from app.charts.corpus_losses import corpus_losses
from app.charts.listing import CHARTS
from app.charts.names import criterion_label
from app.charts.schedules import sides
from app.charts.sizes import size_text
from app.choices import BLEND
from app.literal import literal
from app.loaded import Loaded
from app.session.data import loaded_for, losses_of
from app.session.plan_data import bytes_after, current_plan, neuron_sizes
from app.session.state import (
    EXPONENTS,
    asked_spec,
    controls_on_page,
    corpus_options,
    exponent_controls,
    one_of,
    page_choices,
    slider_steps,
)
from app.widgets.headline import headline
from app.widgets.links import link_to
from app.widgets.plan_bar import loss_of_plan, loss_words, programs
from app.widgets.report import decision_button
from pruning.evaluate.quality import PlanLoss, loss_of
from pruning.neurons.selection import NeuronScope
from pruning.planning.choice import (
    HAND,
    SCHEDULE_NAMES,
    SCOPES,
    schedule_label,
    scopes_of,
)
from pruning.planning.make import CurrentPlan
from pruning.search.store import SEARCH


@dataclass(frozen=True, eq=False)
class Finding:
    """What is shown: a sentence in Markdown, and a chart if there is data for one."""

    sentence: str
    chart: Drawing | None
    # Controls of the pages that ask for the plan shown; empty if it is the session's.
    controls: Mapping[str, Any] = field(default_factory=dict)


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


def _loss(loaded: Loaded) -> PlanLoss | None:
    """The measured loss of the plan, if it compares with those of other plans."""
    loss = loss_of_plan(loaded)[0]
    return None if loss is None or loss.way or loss.missing else loss


def _choose(
    label: str,
    key: str,
    options: Sequence[str],
    words: Callable[[str], str],
    usual: str | None = None,
) -> str:
    """Draw a choice that begins with `usual`, else with the value of the plan's control `key`."""
    usual = usual or one_of(st.session_state.get(key), options)
    chosen = st.segmented_control(
        label, options, default=usual, key=f"story.{key}", format_func=words, required=True
    )
    return one_of(chosen, options, usual)


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
    loss, chance = loss_of_plan(other)
    words = headline(other, plan, loss, chance)
    if loss is None:
        words += f" {loss_words(other, loss, chance).capitalize()}."
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
    rivals = (loaded.choices.baseline.exponents, (0, 0, 0), (1, 1, 1))
    chosen = []
    for key, usual in zip(
        EXPONENTS, next(each for each in rivals if each and each != own.exponents), strict=True
    ):
        options = (0, 1) if key == "b" else (0, 1, 2)
        label = key if key == "b" else rf"$\{key}$"
        chosen.append(
            st.segmented_control(label, options, default=usual, key=f"story.{key}", required=True)
        )
    b, alpha, beta = map(int, chosen)
    if (b, alpha, beta) == own.exponents:
        sentence = f"{own.label} ranks the experts. Another exponent would keep others."
        same = loaded.choosing(baseline=own, second=None)
        return Finding(sentence, CHARTS["kept-by"].draw(same))
    other, _, changed = _other(loaded, exponent_controls((b, alpha, beta)))
    rule = other.choices.ranking_criterion
    both = loaded.choosing(baseline=rule, second=None)
    sentence = (
        f"{own.label} keeps {both.comparison.count('only A')} experts that {rule.label} drops"
    )
    sentence += _instead(loaded, other)
    return Finding(f"{sentence}.", CHARTS["kept-by"].draw(both), changed)


def _instead(loaded: Loaded, other: Loaded) -> str:
    """The losses of both plans, if they were measured."""
    if (mine := _loss(loaded)) and (theirs := _loss(other)):
        return f": loss {mine.mean:+.2f} instead of {theirs.mean:+.2f}"
    return ""


def _neuron_criteria(loaded: Loaded, own: Criterion) -> Finding:
    """How many neurons another criterion decides differently."""
    rivals = [name for name in NEURON_CRITERIA if name != own.name.partition(":")[0]]
    name = _choose("Instead", "neurons", rivals, criterion_label, rivals[0])
    other, _, changed = _other(loaded, {"neurons": name})
    gone, same = neuron_cut.pruned(loaded), neuron_cut.pruned(other)
    sentence = (
        f"{own.label} keeps {int((same & ~gone).sum()):,} neurons that {criterion_label(name)} "
        f"drops{_instead(loaded, other)}"
    )
    return Finding(f"{sentence}.", CHARTS["neurons-kept"].draw(other), changed)


def corpora(loaded: Loaded) -> Finding:
    """What the calibration corpus costs on each corpus."""
    own, losses = loaded.routed_criterion(), losses_of(loaded.model)
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
        if loss is not None and not (loss.way or loss.missing):
            measured[name] = loss.change
    if corpus in measured:
        changes = measured[corpus]
        words = ", ".join(f"{literal(name)} {change:+.2f}" for name, change in changes.items())
        text = f"all {len(loaded.runs)} corpora" if corpus == BLEND else literal(corpus)
        sentence = f"Calibrated on {text}, {own.label} costs {words}."
        chart = corpus_losses(measured, corpus, loaded.about("loss increase"))
        return Finding(sentence, chart, changed)
    by_neuron = loaded.choices.spec.by_neuron
    chart = CHARTS["neuron-overlap" if by_neuron else "overlap"].draw(other)
    return Finding(f"{literal(chart.alt)} Losses are not measured.", chart, changed)


def budget(loaded: Loaded) -> Finding:
    """How many experts each layer keeps under a schedule, or neurons under a scope."""
    if loaded.choices.spec.by_neuron:
        return _scopes(loaded)
    counts = sides(loaded).counts
    options = [name for name in SCHEDULE_NAMES if name in set(counts["schedule"])]
    name = _choose("Schedule", "schedule", options, schedule_label)
    other, plan, changed = _other(loaded, {"schedule": name})
    kept = plan.kept.values()
    low, high = min(kept), max(kept)
    spread = f"{low} experts in every layer" if low == high else f"{low} to {high} experts a layer"
    sentence = f"{schedule_label(name)} keeps {spread}; {loss_words(other, *loss_of_plan(other))}."
    return Finding(sentence, CHARTS["schedules"].draw(other), changed)


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
    where = f"loads in {programs(other, plan).words or 'no engine that was tried'}"
    before, after = loaded.model.checkpoint.nbytes, bytes_after(other, plan)
    sentence = (
        f"{size_text(after)} instead of {size_text(before)}, "
        f"{loss_words(other, *loss_of_plan(other))}; {where}."
    )
    decision_button(other, plan, "report.story")
    link_to("export", "Export", "output")
    return Finding(sentence, CHARTS["sizes"].draw(other), changed)
