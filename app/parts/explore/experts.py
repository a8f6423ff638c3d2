"""The parts of the Explore page on top and below: numbers, clarity of the cut, command."""

import math
from fractions import Fraction

import streamlit as st

from analysis.criteria import Criterion
from analysis.ranking.overlap import chance_overlap
from app.charts.context import Context
from app.charts.overlap import pair_overlaps
from app.frame.cards import card
from app.frame.charts import show
from app.session import data
from app.session.needed import what_is_missing
from app.tables import maps
from pruning.planning.ranking import criterion_badge
from pruning.sizes import format_bytes


def ranked_pair(context: Context) -> tuple[maps.Ranked, maps.Ranked] | None:
    """The criterion and the one beside it; None after saying why there is nothing to show."""
    if context.criterion is None:
        st.info(
            "The variant (1, 0, 0) gives every routed expert the score 1, so it ranks nothing. "
            "Choose b = 0, or another exponent for the gate or the activation.",
            icon=":material/info:",
        )
        return None
    for criterion in (context.criterion, context.baseline):
        if (missing := what_is_missing(context, criterion)) is not None:
            st.info(missing, icon=":material/info:")
            return None
    return context.ranked(context.first), context.ranked(context.second)


def metrics(context: Context, shown: maps.Ranked, beside: maps.Ranked) -> None:
    """Four numbers that answer: what, how different, how stable, how small."""
    with st.container(horizontal=True):  # wraps where the window is narrow
        _four_metrics(context, shown, beside)


def _four_metrics(context: Context, shown: maps.Ranked, beside: maps.Ranked) -> None:
    criterion, fraction = shown.criterion, Fraction(context.sparsity_percent, 100)
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
    _stability_metric(context, criterion)
    after = data.size_report_of(context.model, context.sparsity_percent).bytes_after
    before = context.model.checkpoint.nbytes
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


def _stability_metric(context: Context, criterion: Criterion) -> None:
    label = "Overlap across texts"
    note = "Mean share of pruned experts that two calibration texts have in common."
    if criterion.source != "routed":
        card(label, "100%", "reads no text", note=note)
        return
    if len(context.runs) < 2:
        card(label, "-", "needs two texts", note=note)
        return
    table = pair_overlaps(context)
    overlap, chance = float(table["overlap"].mean()), float(table["chance"].mean())
    st.metric(
        label,
        _percent(overlap),
        _against_chance(overlap, chance),
        border=True,
        height="stretch",
        help=note,
    )


def separation_part(context: Context) -> None:
    """How clear the cut between kept and pruned is, layer by layer."""
    st.markdown(
        "The gap in rescaled saliency between the last expert kept and the first pruned, and "
        "the share of experts within 0.05 of that boundary."
    )
    show("separation", context)


def show_command(context: Context) -> None:
    """The command line that gives the plan on screen."""
    if context.criterion is None:
        return
    st.markdown("**This plan from the command line**")
    st.code(context.request_by(context.criterion).command(), language=None, wrap_lines=True)
    st.page_link("views/export.py", label="Export this plan", icon=":material/output:")
