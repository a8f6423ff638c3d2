"""The charts of a score against the true change of the loss, of records of bins."""

from collections.abc import Iterable, Sequence
from typing import Final

import pandas as pd

from analysis.errors import StatsError
from app.charts.chart import Drawing, made_by
from app.charts.context import Context
from app.figures import loss_bins as figure
from app.plots.names import criterion_label
from pruning.evaluate.bins import rank_agreement
from pruning.evaluate.bins_record import BinsRecord, BinsStore, bins_overview
from pruning.plan import ATOMIC_GRANULARITY

WORDS: Final = figure.WORDS


def record_of(
    records: Sequence[BinsRecord], granularity: str, criterion: str, corpora: Sequence[str]
) -> BinsRecord | None:
    """The record of a criterion, in order of its saliency; None where there is none.

    Of several the one that was measured on one of these texts, then on the most samples, in the
    most bins, then the newest: a quick look does not stand in for a careful measurement.
    """
    own = [
        each
        for each in records
        if (each.ranked.granularity, each.ranked.criterion) == (granularity, criterion)
        and each.ranked.how.order == "saliency"
    ]
    own.sort(
        key=lambda each: (
            each.corpus["name"] in corpora,
            each.num_samples,
            len(each.rows),
            str(each.made.get("created_at", "")),
        )
    )
    return own[-1] if own else None


def measured_criteria(records: Iterable[BinsRecord], granularity: str) -> list[str]:
    """Names of the criteria that have a record in order of their saliency, sorted."""
    return sorted(
        {
            each.ranked.criterion
            for each in records
            if each.ranked.granularity == granularity and each.ranked.how.order == "saliency"
        }
    )


def bins_chart(record: BinsRecord, *, name: str = "") -> Drawing:
    """One score against the loss; `name` is the chart's, where it is not the recipe's own score."""
    ranked, table = record.ranked, record.table
    how = ranked.how
    is_atomic = ranked.granularity == ATOMIC_GRANULARITY
    score = criterion_label(ranked.criterion)
    place = "in order of their saliency" if how.order == "saliency" else "by place"
    where = f"{score}, {figure.WORDS[ranked.granularity]} {place}"
    return Drawing(
        name or ("neuron-loss-bins" if is_atomic else "loss-bins"),
        lambda dark: figure.loss_bins(
            table, granularity=ranked.granularity, order=how.order, dark=dark
        ),
        table,
        figure.describe(table, rank_agreement(table), score, record.num_samples),
        made_by(
            f"{record.model.name} {record.model.identity[:8]}",
            ", ".join(ranked.runs),
            where,
            f"loss on {record.corpus['name']}, {record.num_samples} samples",
        ),
    )


def overview_of(records: Sequence[BinsRecord], granularity: str, corpus: str) -> pd.DataFrame:
    """Table of `BINS_TABLE_COLUMNS` of one granularity on one text, the best order first.

    Of the same score and way only the record of the most samples, then bins, then the newest.
    """
    table = bins_overview(records)
    rows = table[(table["granularity"] == granularity) & (table["corpus"] == corpus)]
    same = ["criterion", "gate", "calibrated_on", "order", "scope"]
    rows = rows.sort_values(["num_samples", "bins", "created_at"])
    rows = rows.drop_duplicates(same, keep="last")
    return rows.sort_values("agreement", ascending=False, kind="stable", ignore_index=True)


def verdict(overview: pd.DataFrame) -> str:
    """One sentence: which score orders best, and which worst.

    Args:
        overview: of `overview_of`; not empty.
    """
    rows = overview[overview["order"] == "saliency"].dropna(subset="agreement")
    if rows.empty:
        return "No score has been measured in order of its saliency yet."
    best, worst = rows.iloc[0], rows.iloc[-1]
    best_name = criterion_label(str(best["criterion"]))
    text = f"{best_name} follows the true loss best (rank correlation {best['agreement']:.2f})"
    if len(rows) > 1:
        name = criterion_label(str(worst["criterion"]))
        text += f", {name} least ({worst['agreement']:.2f})"
    return f"{text}."


def loss_of_context(context: Context, granularity: str) -> Drawing:
    """The recipe's criterion against the true loss, of experts or of neurons.

    Raises:
        StatsError: it was not measured.
    """
    records = BinsStore(context.store.directories).records(context.model.identity)
    found = record_of(records, granularity, context.request.criterion, context.request.corpora)
    if found is None:
        what = WORDS[granularity]
        others = ", ".join(measured_criteria(records, granularity))
        advice = f"--criterion takes those that were: {others}" if others else "none was"
        raise StatsError(
            f"{context.ranking_criterion.label} was not measured against the loss of {what} of "
            f"{context.model.name}; {advice}. `moeprune bins` measures."
        )
    return bins_chart(found)
