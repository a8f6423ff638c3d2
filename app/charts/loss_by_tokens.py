"""Quality against calibration size: plans by parts of the tokens, and repairs on fewer."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pandas as pd
import plotly.graph_objects as go

from analysis.criteria import get_criterion
from analysis.errors import StatsError
from app.charts.chart import Drawing, chart, made_by, model_fact
from app.charts.overlap_by_tokens import panels_by_tokens
from pruning.plan.variant_words import variant_words
from pruning.records.subsets import SubsetStore, subset_table

if TYPE_CHECKING:
    from app.loaded import Loaded

LOSS_AXIS = {"title": "loss increase, nats per token", "tickformat": ".2f"}


@chart("loss-by-tokens", "explore")
def draw(loaded: Loaded) -> Drawing:
    """How many tokens a plan needs.

    Loss increase of plans ranked by parts of the calibration tokens, and of repairs on fewer.
    """
    records, _ = loaded.study.records(SubsetStore)
    if not records:
        raise StatsError(
            f"No plans of {loaded.model.name} by parts of the tokens are measured; see "
            "`moeprune subsets`."
        )
    table = spread_table(subset_table(records))
    about = made_by(model_fact(loaded), f"{len(records)} evaluations", "loss increase")
    return Drawing(partial(tokens_curve, table), table, describe(table), about)


def tokens_curve(table: pd.DataFrame, *, dark: bool = False) -> go.Figure:
    """Figure of a `spread_table`: a panel per corpus."""
    return panels_by_tokens(table, LOSS_AXIS, dark)


def spread_table(table: pd.DataFrame) -> pd.DataFrame:
    """Table `corpus, criterion, tokens, value, low, high, parts` of a `subset_table`.

    `criterion` names what ranked and whether a repair followed; `value` is the mean over `parts`.
    """
    labels = []
    for row in table.itertuples(index=False):
        label = get_criterion(str(row.criterion)).label
        calibrated_on = str(row.calibrated_on)
        repair = variant_words(str(row.repaired_on), calibrated_on)
        labels.append(f"{label} on {calibrated_on}{repair}")
    groups = table.assign(criterion=labels).groupby(["corpus", "criterion", "tokens"], sort=False)
    spread = groups["increase"].agg(value="mean", low="min", high="max", parts="count")
    return spread.reset_index()


def describe(table: pd.DataFrame) -> str:
    """One sentence: what the fewest and the most tokens cost, for each series."""
    words = []
    for name, line in table.groupby("criterion", sort=False):
        ends = line.groupby("tokens")["value"].mean().sort_index()
        costs = [f"{cost:+z.3f} by {tokens:,}" for tokens, cost in ends.iloc[[0, -1]].items()]
        words.append(f"{name} {', '.join(dict.fromkeys(costs))} tokens")
    return f"Loss increase, mean over corpora: {'; '.join(words)}."
