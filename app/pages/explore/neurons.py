"""Explore, neurons: what each criterion removes inside the experts, and the evidence."""

from collections.abc import Callable
from functools import partial
from typing import Final

import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from analysis.errors import UserError
from analysis.model.widths import expert_widths
from app.charts import neuron_cut
from app.charts.chart import Drawing
from app.charts.listing import CHARTS
from app.charts.neurons import MOST_TARGETS, clicked_expert, most_divided
from app.charts.same_bytes import same_bytes_of, usual_size
from app.literal import literal
from app.loaded import Loaded
from app.pages.explore.evidence import bins_part
from app.session import data
from app.session.chosen_expert import toggle_expert
from app.session.data import records_of
from app.session.plan_data import check_page_reads, lacks_statistics
from app.session.state import one_of
from app.widgets.charts import show_chart, show_named
from app.widgets.controls import part_switch, say_unknown
from app.widgets.job_form import neurons_missing_part
from app.widgets.notes import against_chance, card, inform, show_command
from pruning.plan.plan import NEURON_GRANULARITY
from pruning.plan.units import NeuronScope
from pruning.records.evaluation import EvaluationStore
from pruning.spec.base import command_line, option_words

_CLICKS: Final = "explore.neurons-kept.clicks"


def same_bytes_part(loaded: Loaded) -> None:
    """Held-out loss of neuron plans and whole-expert plans of equal size."""
    st.markdown(
        "**Neurons or whole experts?** Held-out loss of plans of equal size in bytes (within 1%), "
        "each ranked and measured on the same corpus."
    )
    records_of(loaded, EvaluationStore)  # warns of what cannot be read
    table = same_bytes_of(loaded)
    if table.empty:
        inform(
            f"{literal(loaded.model.name)} has no evaluations of neuron and whole-expert plans of "
            "equal size yet. Run the commands below."
        )
        _commands(loaded)
        return
    chart = CHARTS["same-bytes"].draw(loaded.choosing(removed=_size(table)))
    for sentence in chart.alt.rstrip(".").split(". "):
        st.text(f"{sentence}.")
    show_chart(chart)
    _commands(loaded)


def _size(table: pd.DataFrame) -> float:
    """Draw the choice of size; return its sparsity."""
    sizes = {f"{100 * removed:.4g}%": removed for removed in sorted(set(table["removed"]))}
    options, usual = list(sizes), f"{100 * usual_size(table):.4g}%"
    if len(options) == 1:
        return float(sizes[usual])
    say_unknown("Sparsity", "bytes.removed", options)
    choice = st.select_slider("Sparsity", options, usual, key="bytes.removed", bind="query-params")
    return float(sizes[one_of(choice, options, usual)])


def _commands(loaded: Loaded) -> None:
    """Commands for such evaluations at the sparsity in use."""
    # Experts for the sparsity in use, and the same number of neurons.
    widths = [
        width for layer_widths in expert_widths(loaded.model).values() for width in layer_widths
    ]
    experts = max(1, int(len(widths) * loaded.fraction))
    neurons = experts * sum(widths) // len(widths)
    model, corpus = data.shown_model(loaded.model), next(iter(loaded.runs), "CORPUS")
    shared = ("--criterion", "heapr", "--calibrated-on", corpus)
    cut = ("--granularity", NEURON_GRANULARITY, "--neuron-scope", str(NeuronScope.GLOBAL))
    plans = ("--plan", "neurons.json", "--plan", "experts.json")
    lines = (
        ("plan", model, *shared, *cut, "--remove", f"{neurons}", "-o", "neurons.json"),
        ("plan", model, *shared, "--remove", f"{experts}", "-o", "experts.json"),
        ("evaluate", model, *plans, "--corpus", corpus),
    )
    commands = [command_line(*line) for line in lines]
    show_command(*commands, heading="More of these from the command line")


def neuron_page(loaded: Loaded) -> None:
    """The page for neuron granularity."""
    if lacks_statistics(loaded):
        neurons_missing_part(loaded)
        return
    try:
        check_page_reads(loaded, loaded.neuron_spec)
        kept = CHARTS["neurons-kept"].draw(loaded)
    except UserError as error:
        inform(literal(error))
        return
    has_targets = loaded.model.num_experts <= MOST_TARGETS
    st.markdown(f"{kept.alt} Click an expert to inspect it." if has_targets else kept.alt)
    # A click makes a new figure without a selection, so that another click on the same expert
    # registers.
    clicks = st.session_state.get(_CLICKS, 0)
    show_chart(kept, figure=partial(_map_after, kept, clicks), on_select=_choose_clicked)
    if not has_targets:
        st.caption("So large a map takes no clicks; Ctrl+K and 3.7 open expert 7 of layer 3.")
    _metrics(loaded)
    part = part_switch("Part", "inside", {name: words for name, (words, _) in PARTS.items()})
    if part is not None:
        with st.container(border=True):
            PARTS[part][1](loaded)
    command = loaded.study.request(loaded.neuron_spec).command()
    show_command(command, heading="This plan from the command line")


def _map_after(chart: Drawing, clicks: int, *, dark: bool = False) -> go.Figure:
    return chart.figure(dark=dark).update_layout(meta=clicks)


def _choose_clicked(selection: object) -> None:
    """Choose the expert that was clicked on the map, or none."""
    # Ignore the empty selection that the browser sends on drawing.
    if (place := clicked_expert(selection)) is not None:
        st.session_state[_CLICKS] = st.session_state.get(_CLICKS, 0) + 1
        toggle_expert(place)


def _metrics(loaded: Loaded) -> None:
    """Two numbers: stability, similarity to whole experts."""
    with st.container(horizontal=True):  # wraps where the window is narrow
        card(
            "Overlap across corpora",
            *_overlap_of_corpora(loaded),
            note="Mean share of the pruned neurons that two calibration corpora have in common.",
        )
        card(
            "In experts pruned whole",
            *_inside_experts(loaded),
            note="Share of the pruned neurons in experts that whole-expert HEAPr prunes at the "
            "same sparsity; that of chance where every expert loses the same share.",
        )


def _overlap_of_corpora(loaded: Loaded) -> tuple[str, str]:
    if loaded.choices.ranking_criterion.source != "routed":
        return "100%", "reads no corpus"
    try:
        pairs = neuron_cut.corpora_overlaps(loaded)
    except UserError:
        return "-", "needs two corpora" if loaded.percent else "nothing pruned"
    overlap, chance = float(pairs["overlap"].mean()), float(pairs["chance"].mean())
    return against_chance(overlap, chance)


def _inside_experts(loaded: Loaded) -> tuple[str, str]:
    try:
        table = neuron_cut.heapr_comparison(loaded)
    except UserError:
        return "-", "needs statistics of neurons"
    if not table["removed"].sum():
        return "-", "nothing pruned"
    inside = table.loc[table["gone"], "removed"].sum() / table["removed"].sum()
    chance = table.loc[table["gone"], "neurons"].sum() / table["neurons"].sum()
    return against_chance(inside, chance)


def _saliency_part(loaded: Loaded) -> None:
    st.markdown(
        "**Neuron saliency per layer**, on a logarithmic scale; neurons left of the line are "
        "pruned."
        + (
            " Neurons compete within their expert, so some left of the line are kept: the line is "
            "the highest pruned saliency of the layer."
            if loaded.choices.spec.spread.scope is NeuronScope.EXPERT
            else ""
        )
    )
    show_named("neuron-saliency", loaded, with_sentence=True)


def _expert_part(loaded: Loaded) -> None:
    shares = CHARTS["neurons-kept"].draw(loaded).table
    layer, expert = loaded.choices.expert or most_divided(shares)
    st.markdown(
        f"**The neurons of expert {expert} in layer {layer}**, most salient on the left; those "
        "right of the dashed line are pruned."
    )
    if loaded.choices.expert is None:
        st.text("No expert is chosen; this one is closest to half pruned.")
    show_named("neurons-of-expert", loaded, with_sentence=True)
    # The command that writes the score of every neuron, if there is one.
    spec = loaded.neuron_spec
    if spec.ranking.corpora:
        request = loaded.study.request(spec)
        words = option_words(request, only=("criterion", "granularity", "corpora", "stats_dir"))
        line = command_line("score", request.model, *words, "-o", "scores.csv")
        show_command(line, heading="The score of every neuron from the command line")


def _chart_part(words: str, name: str, loaded: Loaded) -> None:
    """Text, then the chart of this name with its sentence."""
    st.markdown(words)
    show_named(name, loaded, with_sentence=True)


_TEXTS: Final = (
    "**Does the choice depend on the corpus?** Share of the pruned neurons that two calibration "
    "corpora agree on, averaged over the groups that compete. Chance: two random choices of the "
    "same size."
)
_EXPERTS: Final = (
    "**Do pruned neurons concentrate in low-ranked experts?** Experts of each layer in tenths by "
    "whole-expert HEAPr. If whole experts were as good a unit as neurons, the low tenths would "
    "lose everything and the others nothing."
)
PARTS: Final[dict[str, tuple[str, Callable[[Loaded], None]]]] = {
    "saliency": ("Saliency", _saliency_part),
    "expert": ("One expert", _expert_part),
    "texts": ("Corpora", partial(_chart_part, _TEXTS, "neuron-overlap")),
    "experts": ("Whole experts", partial(_chart_part, _EXPERTS, "neurons-beside-experts")),
    "loss": ("Score and loss", partial(bins_part, granularity=NEURON_GRANULARITY)),
    "bytes": ("Same bytes", same_bytes_part),
}
