"""A score against the true change of the loss, bin by bin (HEAPr, Figure 3)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from analysis.criteria import criterion_label
from analysis.errors import StatsError
from app.charts.chart import Drawing, chart, made_by
from app.charts.criterion_looks import criterion_look
from app.charts.theme import Look, ink, muted, themed
from app.charts.traces import series, signed, spread
from pruning.measures.result import SampleCount
from pruning.plan.plan import EXPERT_GRANULARITY, NEURON_GRANULARITY
from pruning.records.bins import BinsRecord, BinsStore, bins_overview, rank_agreement

if TYPE_CHECKING:
    from app.loaded import Loaded

WORDS: Final = {"expert": "experts", "neuron": "neurons"}


def record_of(
    records: Sequence[BinsRecord], granularity: str, criterion: str, corpora: Sequence[str]
) -> BinsRecord | None:
    """The record of a criterion in order of its saliency, if any.

    Preferred are one of these corpora, then more samples, more bins, the newest.
    """

    def preference(record: BinsRecord) -> tuple[Any, ...]:
        is_preferred = record.corpus["name"] in corpora
        return is_preferred, record.num_samples, len(record.bins), record.created_at

    ranking = (granularity, criterion, "saliency")
    matches = [
        record
        for record in records
        if (record.ranked.granularity, record.ranked.criterion, record.ranked.how.order) == ranking
    ]
    return max(matches, key=preference, default=None)


def bins_drawing(record: BinsRecord, *, name: str = "") -> Drawing:
    """The chart of a record; `name` is for scores other than the recipe's."""
    ranked, table = record.ranked, record.table
    how, score, what = ranked.how, criterion_label(ranked.criterion), WORDS[ranked.granularity]
    place = "in order of their saliency" if how.order == "saliency" else "by place"
    options: dict[str, Any] = {
        "criterion": ranked.criterion,
        "granularity": ranked.granularity,
        "order": how.order,
    }
    return Drawing(
        partial(loss_bins, table, **options),
        table,
        describe(table, rank_agreement(table), score, record.count),
        made_by(
            f"{record.model.name} {record.model.identity[:8]}",
            ", ".join(ranked.runs),
            f"{score}, {what} {place}",
            f"loss on {record.corpus['name']}, {record.count.words}",
            f"bars: {record.count.interval_words}",
        ),
        name,
    )


def _draw(loaded: Loaded, granularity: str) -> Drawing:
    records = loaded.study.opened(BinsStore).records(loaded.model.identity)
    ranking = loaded.spec.ranking
    name = ranking.criterion
    record = record_of(records, granularity, name, ranking.corpora)
    if record is None:
        measured = [bins.ranked for bins in records if bins.ranked.granularity == granularity]
        others = sorted({order.criterion for order in measured if order.how.order == "saliency"})
        advice = f"--criterion takes those that were: {', '.join(others)}" if others else "none was"
        raise StatsError(
            f"{loaded.choices.ranking_criterion.label} was not measured against the loss of "
            f"{WORDS[granularity]} of {loaded.model.name}; {advice}. `moeprune bins` measures."
        )
    return bins_drawing(record)


@chart("loss-bins", "explore")
def draw_expert_bins(loaded: Loaded) -> Drawing:
    """Whether the score orders experts as the loss does."""
    return _draw(loaded, EXPERT_GRANULARITY)


@chart("neuron-loss-bins", "explore", granularity=NEURON_GRANULARITY)
def draw_neuron_bins(loaded: Loaded) -> Drawing:
    """Whether the score orders neurons as the loss does."""
    return _draw(loaded, NEURON_GRANULARITY)


def overview_of(records: Sequence[BinsRecord], granularity: str, corpus: str) -> pd.DataFrame:
    """Table of `BINS_TABLE_COLUMNS` of one granularity on one corpus, the best order first.

    Of each score and setup the record with the most samples, then bins, then the newest.
    """
    table = bins_overview(records)
    rows = table[(table["granularity"] == granularity) & (table["corpus"] == corpus)]
    same = ["criterion", "gate", "calibrated_on", "order", "scope"]
    rows = rows.sort_values(["num_samples", "bins", "created_at"])
    rows = rows.drop_duplicates(same, keep="last")
    return rows.sort_values("agreement", ascending=False, kind="stable", ignore_index=True)


def verdict(overview: pd.DataFrame) -> str:
    """One sentence on a table of `overview_of`: the scores that order best and worst."""
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


def loss_bins(
    table: pd.DataFrame, *, criterion: str, granularity: str, order: str, dark: bool = False
) -> go.Figure:
    """Figure of a table of `pruning.records.bins.BIN_COLUMNS`, a row per bin.

    Bars are the loss increase without a bin, with 95% intervals by documents. Diamonds split
    the sum of all increases by share of the saliency: the increase if the score were
    proportional to the loss. They are left out if a saliency is negative or the sum is not
    positive. `order` is `saliency` (least salient first) or `index`.
    """
    bins = [str(number + 1) for number in table["bin"]]
    changes, what = table["loss_change"], WORDS[granularity]
    traces = [
        go.Bar(
            x=bins,
            y=signed(changes, 4),
            name="loss without the bin, minus the original model's",
            error_y=spread(changes, table["low"], table["high"], color=muted(dark), thickness=1.5),
            customdata=table[["saliency", "removed"]],
            marker={"color": criterion_look(criterion, dark).color},
            hovertemplate=f"bin %{{x}}: %{{customdata[1]:,}} {what}, mean saliency "
            "%{customdata[0]:.3g}<br>loss %{y:+.4f} nats per token<extra></extra>",
        )
    ]
    is_positive = (table["saliency"] >= 0).all() and table["share"].notna().all()
    if is_positive and changes.sum() > 0:
        shares = series(
            Look(ink(dark), "diamond", "dash"),
            "the same sum, dealt out by share of the saliency",
            (bins, table["share"] * changes.sum()),
            "bin %{x}: %{customdata[0]:.1%} of the saliency",
            customdata=table[["share"]],
        )
        traces.append(shares)
    place = "least salient first" if order == "saliency" else "first layers first"
    return themed(
        traces,
        dark,
        x={"type": "category", "title": f"bin of {what}, {place}", "showgrid": False},
        y={"title": "loss increase, nats per token", "zeroline": True},
        height=380,
    )


def describe(table: pd.DataFrame, agreement: float, name: str, count: SampleCount) -> str:
    """One sentence: how well a score orders by loss; `name` is the score's."""
    first, last = table.iloc[0], table.iloc[-1]
    ends = (
        f"the first bin costs {first['loss_change']:+z.4f} nats per token, the last "
        f"{last['loss_change']:+z.4f}"
    )
    if math.isnan(agreement):
        return f"{name} is equal for all bins, so it gives no order; {ends}."
    words = ("orders them in reverse", "hardly predicts the loss", "orders them roughly right")
    place = int(np.searchsorted([-0.3, 0.5, 0.9], agreement, side="right"))
    judged = (*words, "orders them right")[place]
    return (
        f"{name} {judged}: rank correlation with the true loss increase "
        f"{agreement:.2f} over {len(table)} bins, on {count.words} (19 of 20 random orders "
        f"stay below {chance_agreement(len(table)):.2f}); {ends}."
    )


def chance_agreement(bins: int) -> float:
    """The rank correlation that a random order exceeds one time in 20; 1 for fewer than 4 bins.

    By Student's t = r sqrt((n - 2) / (1 - r^2)).
    """
    if bins < 4:
        return 1.0
    from scipy.stats import t as student_t  # slow to import

    quantile = float(student_t.ppf(0.95, bins - 2))
    return quantile / math.sqrt(bins - 2 + quantile**2)
