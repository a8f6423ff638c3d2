"""The findings of the story. Their controls are their own: they begin with those of the plan."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import exp
from typing import Any

import streamlit as st

from analysis.errors import StatsError, UserError
from app.charts.chart import Drawing
from app.charts.corpus_losses import corpus_losses
from app.charts.listing import CHARTS
from app.charts.schedules import sides
from app.charts.sizes import size_text
from app.literal import literal
from app.loaded import Loaded
from app.session.data import loaded_for, losses_of
from app.session.plan_data import bytes_after, made_plan
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
from app.widgets.plan_bar import loss_of_plan, loss_words
from app.widgets.report import decision_button
from pruning.engines import contents_of, readers, verdicts
from pruning.evaluate.quality import PlanLoss, loss_of
from pruning.planning.choice import HAND, SCHEDULE_NAMES, schedule_label
from pruning.search.store import SEARCH


@dataclass(frozen=True, eq=False)
class Finding:
    """What is shown: a sentence in Markdown, and a chart if there is data for one."""

    sentence: str
    chart: Drawing | None
    # Controls of the pages that ask for the plan shown; empty if it is the session's.
    controls: Mapping[str, Any] = field(default_factory=dict)


def _other(loaded: Loaded, controls: Mapping[str, Any]) -> tuple[Loaded, dict[str, Any]]:
    """The plan with other values of these controls, and those that differ from the session's.

    Counts by hand and searches belong to one plan; every other begins with the uniform schedule.
    """
    state = controls_on_page()
    changed = {key: value for key, value in controls.items() if state.get(key) != value}
    if not changed:
        return loaded, {}
    if state.get("schedule") in (HAND, SEARCH):
        changed = {"schedule": "uniform", **changed}
    asked = asked_spec(state | changed, loaded.model, list(loaded.runs))
    other = loaded_for(loaded.model, page_choices(asked))
    return replace(other, shown=made_plan(other)), changed


def _loss(loaded: Loaded) -> PlanLoss | None:
    """The measured loss of the plan, if it compares with those of other plans."""
    loss = loss_of_plan(loaded)[0]
    return None if loss is None or loss.way or loss.missing else loss


def _choose(label: str, key: str, options: Sequence[str], words: Callable[[str], str]) -> str:
    """Draw a choice that begins with the value of the plan's control `key`."""
    usual = one_of(st.session_state.get(key), options)
    chosen = st.segmented_control(
        label, options, default=usual, key=f"story.{key}", format_func=words, required=True
    )
    return one_of(chosen, options, usual)


def saving(loaded: Loaded) -> Finding:
    """What pruning saves, at a sparsity."""
    state = st.session_state
    percent = st.select_slider(
        "Sparsity",
        slider_steps(loaded.model, state["budget"], by_neuron=False),
        state["sparsity"],
        key="story.sparsity",
        format_func=lambda value: f"{value}%",
        width=560,
    )
    other, changed = _other(loaded, {"sparsity": percent})
    loss, chance = loss_of_plan(other)
    words = headline(other, other.shown or made_plan(other), loss)
    if loss is None:
        words += f" {loss_words(other, loss, chance).capitalize()}."
    elif chance is not None and not loss.is_random:
        words += f" A random choice: x{exp(chance.mean):.1f}."
    try:
        chart = CHARTS["loss-by-size"].draw(other)
    except UserError:  # nothing was evaluated
        chart = CHARTS["sizes"].draw(other)
    return Finding(words, chart, changed)


def criteria(loaded: Loaded) -> Finding:
    """How many experts other exponents decide differently."""
    own = loaded.choices.ranking_criterion
    exponents = own.exponents or (1, 1, 1)
    chosen = []
    for key, usual in zip(EXPONENTS, exponents, strict=True):
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
    other, changed = _other(loaded, exponent_controls((b, alpha, beta)))
    rule = other.choices.ranking_criterion
    both = loaded.choosing(baseline=rule, second=None)
    sentence = (
        f"{own.label} keeps {both.comparison.count('only A')} experts that {rule.label} drops"
    )
    if (mine := _loss(loaded)) and (theirs := _loss(other)):
        sentence += f": loss {mine.mean:+.2f} instead of {theirs.mean:+.2f}"
    return Finding(f"{sentence}.", CHARTS["kept-by"].draw(both), changed)


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
    other, changed = _other(loaded, {"corpus": corpus})
    measured = {}
    for name in options:
        plan = _other(loaded, {"corpus": name})[0].shown
        loss = loss_of(losses, plan.plan.digest) if plan else None
        if loss is not None and not (loss.way or loss.missing):
            measured[name] = loss.change
    if corpus in measured:
        changes = measured[corpus]
        words = ", ".join(f"{literal(name)} {change:+.2f}" for name, change in changes.items())
        sentence = f"Calibrated on {literal(corpus)}, {own.label} costs {words}."
        chart = corpus_losses(measured, corpus, loaded.about("loss increase"))
        return Finding(sentence, chart, changed)
    chart = CHARTS["overlap"].draw(other)
    return Finding(f"{literal(chart.alt)} Losses are not measured.", chart, changed)


def budget(loaded: Loaded) -> Finding:
    """How many experts each layer keeps under a schedule."""
    counts = sides(loaded).counts
    options = [name for name in SCHEDULE_NAMES if name in set(counts["schedule"])]
    name = _choose("Schedule", "schedule", options, schedule_label)
    other, changed = _other(loaded, {"schedule": name})
    kept = (other.shown or made_plan(other)).kept.values()
    low, high = min(kept), max(kept)
    spread = f"{low} experts in every layer" if low == high else f"{low} to {high} experts a layer"
    sentence = f"{schedule_label(name)} keeps {spread}; {loss_words(other, *loss_of_plan(other))}."
    return Finding(sentence, CHARTS["schedules"].draw(other), changed)


def shipping(loaded: Loaded) -> Finding:
    """What the export weighs, what it costs, and which engines load it."""
    usual = st.session_state["schedule"]
    is_even = st.toggle("Equal counts in every layer", usual == "uniform", key="story.even")
    uneven = "global" if usual == "uniform" else usual
    other, changed = _other(loaded, {"schedule": "uniform" if is_even else uneven})
    plan = other.shown or made_plan(other)
    names = readers(verdicts(contents_of(loaded.model, plan.plan)))
    where = f"loads in {', '.join(names)}" if names else "no engine was tried with such an export"
    before, after = loaded.model.checkpoint.nbytes, bytes_after(other, plan)
    sentence = (
        f"{size_text(after)} instead of {size_text(before)}, "
        f"{loss_words(other, *loss_of_plan(other))}; {where}."
    )
    decision_button(other, plan, "report.story")
    link_to("export", "Export", "output")
    return Finding(sentence, CHARTS["sizes"].draw(other), changed)
