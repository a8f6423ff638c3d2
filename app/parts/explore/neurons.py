"""Explore, neurons: what each criterion removes inside the experts, and the evidence."""

from collections.abc import Callable
from functools import partial
from typing import Final

import plotly.graph_objects as go
import streamlit as st

from analysis.errors import UserError
from app.charts import neuron_cut
from app.charts.chart import Drawing
from app.charts.context import Context
from app.charts.listing import CHARTS
from app.charts.neuron_saliency import most_divided
from app.charts.neurons_kept import clicked_expert
from app.frame.cards import card
from app.frame.charts import selection_of, show, show_chart
from app.frame.controls import switch
from app.frame.notes import inform, show_command
from app.literal import literal
from app.parts.explore.bins import bins_part
from app.parts.explore.neuron_needs import neurons_missing_part
from app.parts.explore.same_bytes import same_bytes_part
from app.session.chosen_expert import pin_or_unpin
from app.session.plan_data import check_page_reads, lacks_statistics
from pruning.atoms.selection import AtomScope
from pruning.plan import ATOMIC_GRANULARITY
from pruning.planning.choice import SCOPES
from pruning.requests.base import command_line, repeated

_CLICKS: Final = "explore.neurons-kept.clicks"


def neuron_page(context: Context) -> None:
    """The page for neuron granularity."""
    if lacks_statistics(context):
        neurons_missing_part(context)
        return
    try:
        request = neuron_cut.neuron_request(context)
        check_page_reads(context, request)
        kept = CHARTS["neurons-kept"].draw(context)
    except UserError as error:
        inform(literal(error))
        return
    _metrics(context)
    seen = neuron_cut.across_experts(context)
    with st.container(border=True):
        where = ""
        if seen is not context:
            scope = SCOPES[neuron_cut.neuron_choice(seen).scope].lower()
            where = f" if neurons competed within {scope}; the plan prunes all experts equally"
        st.markdown(
            f"**Neurons kept per expert**{where}. Dark experts are nearly empty. Click one to "
            "inspect it."
        )
        # A click makes a new figure without a selection, so that another click on the
        # same expert registers.
        clicks = st.session_state.get(_CLICKS, 0)
        show_chart(
            kept, figure=partial(_map_after, kept, clicks), said=True, on_select=_pin_clicked
        )
    part = switch("Part", "inside", {name: words for name, (words, _) in PARTS.items()})
    with st.container(border=True):
        PARTS[part][1](context)
    show_command(request.command(), heading="This plan from the command line")
    st.page_link("views/plan.py", label="Plan with these neurons", icon=":material/tune:")


def _map_after(chart: Drawing, clicks: int, *, dark: bool = False) -> go.Figure:
    return chart.figure(dark=dark).update_layout(meta=clicks)


def _pin_clicked() -> None:
    """Pin the expert that was clicked on the map, or unpin it."""
    # Ignore the empty selection that the browser sends on drawing.
    if (place := clicked_expert(selection_of("neurons-kept"))) is not None:
        st.session_state[_CLICKS] = st.session_state.get(_CLICKS, 0) + 1
        pin_or_unpin(place)


def _metrics(context: Context) -> None:
    """Four numbers: criterion, sparsity, stability, similarity to whole experts."""
    gone = neuron_cut.pruned(context)
    removed, total = int(gone.sum()), gone.size
    overlap, note = _overlap_of_texts(context)
    inside, chance = _inside_experts(context)
    criterion = context.ranking_criterion
    routed = criterion.source == "routed"
    source = context.source_of(criterion) if routed else "reads no corpus"
    cards = (
        ("Criterion", criterion.label, literal(source), None),
        (
            "Neurons pruned",
            f"{removed:,}",
            f"of {total:,}, {removed / total:.1%}",
            "Share of all neurons of routed experts; the sparsity, rounded down.",
        ),
        (
            "Overlap across corpora",
            overlap,
            note,
            "Mean share of the pruned neurons that two calibration corpora have in common.",
        ),
        (
            "In experts pruned whole",
            inside,
            chance,
            "Share of the pruned neurons in experts that whole-expert HEAPr prunes at the same "
            "sparsity. Needs neurons to compete across experts.",
        ),
    )
    with st.container(horizontal=True):  # wraps where the window is narrow
        for label, value, below, explained in cards:
            card(label, value, below, note=explained)


def _overlap_of_texts(context: Context) -> tuple[str, str]:
    if context.ranking_criterion.source != "routed":
        return "100%", "reads no corpus"
    try:
        pairs = neuron_cut.corpora_overlaps(context)
    except UserError:
        return "-", "needs two corpora" if context.sparsity_percent else "nothing pruned"
    overlap, chance = float(pairs["overlap"].mean()), float(pairs["chance"].mean())
    return f"{overlap:.0%}", f"{(overlap - chance) * 100:+.0f} pp vs chance"


def _inside_experts(context: Context) -> tuple[str, str]:
    try:
        table = neuron_cut.beside_experts(neuron_cut.across_experts(context))
    except UserError:
        return "-", "needs statistics of neurons"
    if not table["removed"].sum():
        return "-", "nothing pruned"
    inside = table.loc[table["gone"], "removed"].sum() / table["removed"].sum()
    chance = table.loc[table["gone"], "neurons"].sum() / table["neurons"].sum()
    return f"{inside:.0%}", f"{(inside - chance) * 100:+.0f} pp vs chance"


def _saliency_part(context: Context) -> None:
    st.markdown(
        "**Neuron saliency per layer**, on a logarithmic scale; neurons left of the line are "
        "pruned."
        + (
            " Neurons compete within their expert, so some left of the line are kept: the line is "
            "the highest pruned saliency of the layer."
            if neuron_cut.neuron_choice(context).scope is AtomScope.EXPERT
            else ""
        )
    )
    show("neuron-saliency", context, said=True)


def _expert_part(context: Context) -> None:
    shares = CHARTS["neurons-kept"].draw(context).table
    layer, expert = context.expert or most_divided(shares)
    st.markdown(
        f"**The neurons of expert {expert} in layer {layer}**, most salient on the left; those "
        "right of the dashed line are pruned."
    )
    if context.expert is None:
        st.text("No expert is chosen in the sidebar; this one is closest to half pruned.")
    show("neurons-of-expert", context, said=True)
    # The command that writes the score of every neuron, if there is one.
    asked = neuron_cut.neuron_request(context)
    if asked.corpora:
        stats = ["--stats-dir", str(asked.stats_dir)] if asked.stats_dir else []
        words = ("--criterion", asked.criterion, "--granularity", ATOMIC_GRANULARITY)
        corpora = repeated("--corpus", asked.corpora)
        line = command_line("score", asked.model, *words, *corpora, *stats, "-o", "scores.csv")
        show_command(line, heading="The score of every neuron from the command line")


def _said(words: str, name: str, context: Context) -> None:
    """Text, then the chart of this name with its sentence."""
    st.markdown(words)
    show(name, context, said=True)


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
PARTS: Final[dict[str, tuple[str, Callable[[Context], None]]]] = {
    "saliency": ("Saliency", _saliency_part),
    "expert": ("One expert", _expert_part),
    "texts": ("Corpora", partial(_said, _TEXTS, "neuron-overlap")),
    "experts": ("Whole experts", partial(_said, _EXPERTS, "neurons-beside-experts")),
    "loss": ("Score and loss", partial(bins_part, granularity=ATOMIC_GRANULARITY)),
    "bytes": ("Same bytes", same_bytes_part),
}
