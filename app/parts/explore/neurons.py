"""Explore, of neurons: what each criterion removes inside the experts, and what speaks for it."""

from typing import Final

import pandas as pd
import streamlit as st

from analysis.arrays import BoolArray
from analysis.errors import UserError
from analysis.stats.store import NEURONS
from app.charts.chart import made_by
from app.charts.context import Context
from app.frame.cards import card
from app.frame.charts import show_chart
from app.frame.controls import switch
from app.literal import literal
from app.parts.explore.bins import bins_part
from app.parts.explore.neuron_needs import neurons_missing_part
from app.parts.explore.same_bytes import same_bytes_part
from app.plots import neuron_evidence as plots
from app.plots.names import criterion_label
from app.session import neuron_explore_data as found
from app.session.chosen_expert import chosen_expert
from app.session.granularity import chosen_neuron_criterion, chosen_scope
from app.session.neuron_plan_data import ReadyNeurons, lacks_statistics
from pruning.atoms.cuts import expert_shares, neurons_of
from pruning.atoms.selection import AtomScope
from pruning.plan import ATOMIC_GRANULARITY
from pruning.planning.neuron_scopes import SCOPES
from pruning.requests.base import command_line

PARTS: Final = {
    "saliency": "Saliency",
    "expert": "One expert",
    "texts": "Texts",
    "experts": "Whole experts",
    "loss": "Score and loss",
    "bytes": "Same bytes",
}


def neuron_page(context: Context) -> None:
    """The page, where neurons are chosen."""
    scope = chosen_scope(chosen_neuron_criterion())
    if lacks_statistics(context):
        neurons_missing_part(context)
        return
    try:
        ready = found.ready_to_explore(context)
    except UserError as error:
        st.info(literal(error), icon=":material/info:")
        return
    gone = found.pruned(ready, scope, context.sparsity_percent)
    shares = expert_shares(found.field(ready), gone)
    place = chosen_expert(context.model.layers)
    _metrics(context, ready, scope, shares)
    with st.container(border=True):
        st.markdown(
            "**What stays of each expert**: the share of its neurons that is kept. Dark experts "
            "are nearly gone. Name one as `layer.expert` in the sidebar to look inside."
        )
        chart = plots.share_chart(shares, place, _about(context, ready, scope))
        st.text(chart.alt)
        show_chart(chart)
    part = switch("Part", "inside", PARTS)
    with st.container(border=True):
        if part == "saliency":
            _saliency_part(context, ready, scope)
        elif part == "expert":
            _expert_part(context, ready, (scope, gone), shares)
        elif part == "texts":
            _texts_part(context, scope)
        elif part == "experts":
            _experts_part(context, ready, scope)
        elif part == "loss":
            bins_part(context, ATOMIC_GRANULARITY)
        else:
            same_bytes_part(context)
    st.markdown("**This plan from the command line**")
    st.code(ready.request.command(), language=None, wrap_lines=True)
    st.page_link("views/plan.py", label="Plan with these neurons", icon=":material/tune:")


def _about(context: Context, ready: ReadyNeurons, scope: AtomScope) -> str:
    runs = ", ".join(run.manifest.run_id for run in ready.ranking.choice.runs)
    head = f"{context.model.name} {context.model.identity[:8]}"
    label = criterion_label(chosen_neuron_criterion())
    within = f"neurons compete within {SCOPES[scope].lower()}"
    return made_by(head, runs, label, within, f"sparsity {context.sparsity}")


def _metrics(context: Context, ready: ReadyNeurons, scope: AtomScope, shares: pd.DataFrame) -> None:
    """Four numbers that answer: by what, how much, how stable, how near to whole experts."""
    removed, total = int(shares["removed"].sum()), int(shares["neurons"].sum())
    overlap, note = _overlap_of_texts(context, scope)
    inside, chance = _inside_experts(context, ready, scope)
    source = " + ".join(ready.ranking.choice.corpora) or "reads no text"
    cards = (
        ("Criterion", criterion_label(chosen_neuron_criterion()), literal(source), None),
        (
            "Neurons removed",
            f"{removed:,}",
            f"of {total:,}, {removed / total:.1%}",
            "Of all routed experts; the share that the sidebar asks for, rounded down.",
        ),
        (
            "Overlap across texts",
            overlap,
            note,
            "Mean share of the pruned neurons that two calibration texts have in common.",
        ),
        (
            "In experts pruned whole",
            inside,
            chance,
            "Share of the pruned neurons that lie in experts which HEAPr of whole experts prunes "
            "at the same sparsity.",
        ),
    )
    with st.container(horizontal=True):  # wraps where the window is narrow
        for label, value, below, explained in cards:
            card(label, value, below, note=explained)


def _overlap_of_texts(context: Context, scope: AtomScope) -> tuple[str, str]:
    criterion = context.criterion
    if criterion is None or criterion.source != "routed":
        return "100%", "reads no text"
    texts = found.measured_texts(context)
    if len(texts) < 2 or context.sparsity_percent == 0:
        return "-", "needs two texts" if context.sparsity_percent else "nothing removed"
    pairs = found.text_overlaps(texts, scope, context.sparsity_percent)
    overlap, chance = float(pairs["overlap"].mean()), float(pairs["chance"].mean())
    return f"{overlap:.0%}", f"{(overlap - chance) * 100:+.0f} pp vs chance"


def _inside_experts(context: Context, ready: ReadyNeurons, scope: AtomScope) -> tuple[str, str]:
    table = found.beside_experts(context, ready, scope)
    if table is None or not table["removed"].sum():
        return "-", "nothing removed" if table is not None else "needs statistics of neurons"
    inside = table.loc[table["gone"], "removed"].sum() / table["removed"].sum()
    chance = table.loc[table["gone"], "neurons"].sum() / table["neurons"].sum()
    return f"{inside:.0%}", f"{(inside - chance) * 100:+.0f} pp vs chance"


def _saliency_part(context: Context, ready: ReadyNeurons, scope: AtomScope) -> None:
    st.markdown(
        "**Saliency of the neurons in each layer**, on a logarithmic scale; what lies left of the "
        "line goes."
        + (
            " Neurons compete within their expert, so right of the line some go too, and left of "
            "it some stay: the line is the highest saliency that goes in the layer."
            if scope is AtomScope.EXPERT
            else ""
        )
    )
    histogram, cuts = found.layer_tables(ready.key, scope, context.sparsity_percent, ready)
    if histogram.empty:
        st.info("No neuron has a saliency above 0.", icon=":material/info:")
        return
    chart = plots.saliency_chart(histogram, cuts, _about(context, ready, scope))
    st.text(chart.alt)
    show_chart(chart)


def _expert_part(
    context: Context, ready: ReadyNeurons, cut: tuple[AtomScope, BoolArray], shares: pd.DataFrame
) -> None:
    scope, gone = cut
    halved = plots.most_divided(shares)
    layer, expert = chosen_expert(context.model.layers) or halved
    st.markdown(
        f"**The neurons of expert {expert} in layer {layer}**, first to keep on the left; right of "
        "the dashed line they go."
    )
    if chosen_expert(context.model.layers) is None:
        st.text("No expert is chosen in the sidebar: this is the one that is most nearly halved.")
    table = neurons_of(found.field(ready), gone, layer, expert)
    about = f"{_about(context, ready, scope)} | layer {layer}, expert {expert}"
    # Figures from the command line show the expert that is most nearly halved.
    name = "" if (layer, expert) == halved else f"neurons-of-expert-{layer}.{expert}"
    chart = plots.neuron_chart(table, about, name=name)
    st.text(chart.alt)
    show_chart(chart)
    _score_command(ready)


def _score_command(ready: ReadyNeurons) -> None:
    """The command line that writes the score of every neuron, where there is one."""
    asked = ready.request
    if not ready.ranking.choice.runs:
        return
    corpora = [word for corpus in asked.corpora for word in ("--corpus", corpus)]
    stats = ["--stats-dir", str(asked.stats_dir)] if asked.stats_dir else []
    words = ("--criterion", asked.criterion, "--granularity", ATOMIC_GRANULARITY)
    st.markdown("**The score of every neuron from the command line**")
    line = command_line("score", asked.model, *words, *corpora, *stats, "-o", "scores.csv")
    st.code(line, language=None, wrap_lines=True)


def _texts_part(context: Context, scope: AtomScope) -> None:
    st.markdown(
        "**Does the choice depend on the text?** The share of the pruned neurons that two "
        "calibration texts agree on, as for experts: the mean over those that compete with each "
        "other. Chance is what two random choices of as many share."
    )
    criterion = context.criterion
    if criterion is None or criterion.source != "routed":
        st.info(
            f"{criterion_label(chosen_neuron_criterion())} reads no text, so all texts agree.",
            icon=":material/info:",
        )
        return
    if context.sparsity_percent == 0:
        st.info("Nothing is pruned at 0%. Raise the sparsity.", icon=":material/info:")
        return
    texts = found.measured_texts(context)
    if len(texts) < 2:
        st.info(
            f"The neurons of {literal(context.model.name)} were measured on {len(texts)} text; "
            "calibrate on another with `--groups routed,gradient`.",
            icon=":material/info:",
        )
        return
    pairs = found.text_overlaps(texts, scope, context.sparsity_percent)
    about = made_by(
        ", ".join(text.ranking.choice.runs[0].manifest.run_id for text in texts.values()),
        criterion_label(chosen_neuron_criterion()),
        f"sparsity {context.sparsity}",
    )
    chart = plots.text_overlap_chart(pairs, list(texts), about)
    st.text(chart.alt)
    show_chart(chart)


def _experts_part(context: Context, ready: ReadyNeurons, scope: AtomScope) -> None:
    st.markdown(
        "**Do the neurons that go lie in experts that would go whole?** Experts of each layer in "
        "tenths by HEAPr of whole experts. Were whole experts as good a unit as neurons, the low "
        "tenths would lose all and the others nothing."
    )
    table = found.beside_experts(context, ready, scope)
    if table is None:
        lacking = [t for t, run in context.runs.items() if NEURONS not in run.manifest.files]
        st.info(
            "HEAPr of whole experts needs statistics of neurons"
            + (f", which {literal(', '.join(lacking))} lacks" if lacking else "")
            + "; calibrate with `--groups routed,gradient`.",
            icon=":material/info:",
        )
        return
    chart = plots.experts_chart(table, _about(context, ready, scope))
    st.text(chart.alt)
    show_chart(chart)
