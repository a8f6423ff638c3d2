"""The parts of the Explore page on top and below: numbers, clarity of the cut, command."""

import math
from collections.abc import Sequence
from fractions import Fraction

import streamlit as st

from analysis.criteria import Criterion
from analysis.ranking.overlap import chance_overlap
from app.frame.cards import card
from app.frame.charts import chart_files, show_chart
from app.parts.explore.overlap import pair_overlaps
from app.plots import explore as plots
from app.plots.chart import Chart, made_by
from app.session import data
from app.session.needed import needed_stats
from app.session.state import View, chosen_baseline
from app.tables import maps
from pruning.planning.ranking import criterion_badge
from pruning.sizes import format_bytes


def ranked_pair(view: View) -> tuple[maps.Ranked, maps.Ranked] | None:
    """The criterion and the one beside it; None after saying why there is nothing to show."""
    if view.criterion is None:
        st.info(
            "The variant (1, 0, 0) gives every routed expert the score 1, so it ranks nothing. "
            "Choose b = 0, or another exponent for the gate or the activation.",
            icon=":material/info:",
        )
        return None
    ranked = []
    for criterion in (view.criterion, chosen_baseline()):
        stats = needed_stats(view, criterion)
        if stats is None:
            return None
        ranked.append(maps.rank(criterion, stats, view.gate))
    return ranked[0], ranked[1]


def metrics(view: View, shown: maps.Ranked, beside: maps.Ranked) -> None:
    """Four numbers that answer: what, how different, how stable, how small."""
    with st.container(horizontal=True):  # wraps where the window is narrow
        _four_metrics(view, shown, beside)


def _four_metrics(view: View, shown: maps.Ranked, beside: maps.Ranked) -> None:
    criterion, fraction = shown.criterion, Fraction(view.sparsity_percent, 100)
    card(
        "Criterion",
        criterion.label,
        criterion_badge(criterion),
        note=f"${criterion.formula}$  \n{criterion.reference}",
    )
    same = maps.same_pruned(shown, beside, fraction)
    st.metric(
        f"Pruned by {beside.criterion.label} too",
        _percent(same),
        _against_chance(same, chance_overlap(shown.grid, fraction)),
        delta_color="off",  # to differ from the other criterion is neither good nor bad
        border=True,
        height="stretch",
        help="Share of the experts pruned here which the criterion on the left prunes as well.",
    )
    _stability_metric(view, criterion)
    after = data.size_report_of(view.model, view.sparsity_percent).bytes_after
    before = view.model.checkpoint.nbytes
    st.metric(
        "Size after pruning",
        format_bytes(after),
        f"-{format_bytes(before - after)}" if after < before else "nothing removed",
        delta_color="inverse" if after < before else "off",
        border=True,
        height="stretch",
        help="Bytes of all tensors on disk; every layer loses the same share.",
    )


def _percent(share: float) -> str:
    return "-" if math.isnan(share) else f"{share:.0%}"


def _against_chance(share: float, chance: float) -> str | None:
    return None if math.isnan(share) else f"{(share - chance) * 100:+.0f} pp vs chance"


def _stability_metric(view: View, criterion: Criterion) -> None:
    label = "Overlap across texts"
    note = "Mean share of pruned experts that two calibration texts have in common."
    if criterion.source != "routed":
        card(label, "100%", "reads no text", note=note)
        return
    if len(view.runs) < 2:
        card(label, "-", "needs two texts", note=note)
        return
    table = pair_overlaps(view, criterion)
    overlap, chance = float(table["overlap"].mean()), float(table["chance"].mean())
    st.metric(
        label,
        _percent(overlap),
        _against_chance(overlap, chance),
        border=True,
        height="stretch",
        help=note,
    )


def map_files(view: View, shown: maps.Ranked, beside: maps.Ranked) -> None:
    """The expert map to take away: its numbers, and a drawing of them for files."""

    def chart() -> Chart:
        panels = {ranked.criterion.label: ranked for ranked in (beside, shown)}
        table = maps.ranked_experts(list(panels.values()), Fraction(view.sparsity_percent, 100))
        about = made_by(view.about(), " beside ".join(panels), f"gate {view.gate}")
        return plots.stratification_chart(table, about)

    chart_files("stratification", chart)


def separation_part(view: View, panels: Sequence[maps.Ranked]) -> None:
    """How clear the cut between kept and pruned is, layer by layer."""
    st.markdown(
        "The gap in rescaled saliency between the last expert kept and the first pruned, and "
        "the share of experts within 0.05 of that boundary."
    )
    if view.sparsity_percent == 0:
        st.info("Nothing is pruned at 0%, so there is no cut.", icon=":material/info:")
        return
    distinct = {ranked.criterion.label: ranked for ranked in panels}
    table = maps.separations(list(distinct.values()), Fraction(view.sparsity_percent, 100))
    about = made_by(view.about(), " beside ".join(distinct))
    show_chart(plots.separation_chart(table, about))


def show_command(view: View) -> None:
    """The command line that gives the plan on screen."""
    if view.criterion is None:
        return
    st.markdown("**This plan from the command line**")
    st.code(view.request(view.criterion).command(), language=None, wrap_lines=True)
    st.page_link("views/export.py", label="Export this plan", icon=":material/output:")
