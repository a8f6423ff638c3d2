"""Explore: key numbers, clarity of the cut, command line."""

import math

import streamlit as st

from analysis.criteria import Criterion
from analysis.ranking.overlap import chance_overlap, set_overlap
from app.charts.context import Context
from app.charts.overlap import pair_overlaps
from app.frame.cards import card
from app.frame.charts import show
from app.frame.notes import inform, show_command
from app.session.data import shown_model
from app.session.needed import what_is_missing
from app.tables.ranked import Ranked


def ranked_pair(context: Context) -> tuple[Ranked, Ranked] | None:
    """The criterion and its baseline; None if there is nothing to show, with a message."""
    if context.criterion is None:
        return None  # the plan bar shows why
    for criterion in (context.criterion, context.baseline):
        if (missing := what_is_missing(context, criterion)) is not None:
            # Without a plan the bar reports it for the criterion.
            if context.shown is not None or criterion is not context.criterion:
                inform(missing)
            return None
    return context.ranked(context.first), context.ranked(context.second)


def metrics(context: Context, shown: Ranked, beside: Ranked) -> None:
    """Two numbers: difference from the baseline, and stability."""
    fraction = context.fraction
    same = set_overlap(shown.pruned(fraction), beside.pruned(fraction))
    with st.container(horizontal=True, key="facts"):  # wraps where the window is narrow
        card(
            f"Pruned by {beside.criterion.label} too",
            *_against_chance(same, chance_overlap(shown.grid, fraction)),
            note="Share of these pruned experts that the criterion on the left prunes too.",
            delta_arrow="auto",  # differing from the other criterion is neither good nor bad
        )
        _stability_metric(context, shown.criterion)


def _against_chance(share: float, chance: float) -> tuple[str, str | None]:
    """Difference of a share from chance."""
    if math.isnan(share):
        return "-", None
    return f"{share:.0%}", f"{(share - chance) * 100:+.0f} pp vs chance"


def _stability_metric(context: Context, criterion: Criterion) -> None:
    label = "Overlap across corpora"
    note = "Mean share of pruned experts that two calibration corpora have in common."
    if criterion.source != "routed":
        card(label, "100%", "reads no corpus", note=note)
    elif len(context.runs) < 2:
        card(label, "-", "needs two corpora", note=note)
    else:
        means = pair_overlaps(context)[["overlap", "chance"]].mean()
        said = _against_chance(float(means["overlap"]), float(means["chance"]))
        card(label, *said, note=note, delta_color="normal", delta_arrow="auto")


def separation_part(context: Context) -> None:
    """How clear the cut between kept and pruned is, per layer."""
    st.markdown(
        "The gap in rescaled saliency between the last expert kept and the first pruned, and "
        "the share of experts within 0.05 of that boundary."
    )
    show("separation", context)


def plan_command(context: Context) -> None:
    """The command line for the plan on screen."""
    if context.shown is None:
        return
    line = context.shown.plan_command(shown_model(context.model))
    show_command(line, heading="This plan from the command line")
    st.page_link("views/export.py", label="Export this plan", icon=":material/output:")
