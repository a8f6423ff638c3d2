"""The statistics that a criterion reads, or what is missing and how to get it."""

import streamlit as st

from analysis.criteria import Criterion
from analysis.ranking.experts import Stats
from analysis.stats.groups import groups_for
from analysis.stats.tables import NoStats
from app.literal import literal
from app.session import data
from app.session.state import View


def what_is_missing(view: View, criterion: Criterion) -> str | None:
    """What a criterion would read and the model lacks, and what to do; None if it can rank."""
    if criterion.source == "routed" and not view.runs:
        return (
            f"{criterion.label} ranks by routed tokens, and {literal(view.model.name)} has not "
            "been calibrated yet. Start a calibration on the **Start** page, or choose AIMER or "
            "Magnitude, which need none."
        )
    if criterion.source == "routed":
        return _missing_groups(view, criterion)
    if criterion.source == "weights" and data.weight_run(view.model) is None:
        return (
            f"{criterion.label} reads the weights of {literal(view.model.name)}, which have not "
            "been measured yet. Start that on the **Start** page: it takes seconds."
        )
    return None


def _missing_groups(view: View, criterion: Criterion) -> str | None:
    """What to say of a text in use whose run lacks statistic groups that the criterion reads."""
    groups = groups_for(criterion.columns("applied"))
    for corpus, weight in view.weights.items():
        lacking = set(groups) - set(view.runs[corpus].manifest.groups)
        if weight > 0 and lacking:
            return (
                f"{criterion.label} reads what the statistics of {literal(corpus)} lack. Collect "
                f"it on the **Start** page or with `moeprune calibrate`, as `--groups "
                f"{','.join(groups)}` and with the same text."
            )
    return None


def needed_stats(view: View, criterion: Criterion) -> Stats | None:
    """The statistics that a criterion reads; None after saying what is missing and what to do."""
    missing = what_is_missing(view, criterion)
    if missing is not None:
        st.info(missing, icon=":material/info:")
        return None
    if criterion.source == "routed":
        weights = view.weights
        runs = [view.runs[corpus] for corpus in weights]
        return data.blended_stats(runs, list(weights.values()))
    run = data.weight_run(view.model) if criterion.source == "weights" else None
    return NoStats(view.model.layers) if run is None else data.weight_stats(run)
