"""The charts over the papers' own results: winner map, capability profile, leaderboard."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import pandas as pd

from analysis.published import ABILITIES, PAPERS, published_table
from analysis.ranking.leaderboard import (
    WINNER_COLUMNS,
    ability_weights,
    average_rank,
    score_table,
    weighted_average,
    winners,
)
from app.charts.chart import Drawing, made_by
from app.figures import capability, winner_map
from app.plots.names import FULL, criterion_label

# Table -> what it is about, for the list to choose from.
TABLES: Final = {
    "unified-table-5": "Unified criteria, Table 5: C4 calibration, 16 benchmarks",
    "unified-table-1": "Unified criteria, Table 1: C4 calibration, abilities",
    "unified-table-2": "Unified criteria, Table 2: calibrated on the task",
    "evoesap-table-1": "EvoESAP, Table 1: uniform and searched, OLMoE and ERNIE",
    "evoesap-table-2": "EvoESAP, Table 2: uniform and searched, Qwen3",
    "evoesap-table-6": "EvoESAP, Table 6: uniform and searched on C4, ERNIE",
    "evoesap-table-7": "EvoESAP, Table 7: coding",
    "evoesap-table-8": "EvoESAP, Table 8: writing and math",
    "evoesap-table-9": "EvoESAP, Table 9: multiple choice",
}


@dataclass(frozen=True)
class Setting:
    """One block of a paper's table: a model at a sparsity."""

    table: str
    model: str
    sparsity: float


def settings_of(table: str) -> list[Setting]:
    """The blocks of a table, in its order; the full models are in every block of theirs."""
    pruned = published_table(table).query("sparsity > 0")
    pairs = pruned[["model", "sparsity"]].drop_duplicates()
    return [Setting(table, model, float(sparsity)) for model, sparsity in pairs.to_numpy()]


def blocks_of(table: str) -> dict[str, Setting]:
    """The blocks of a table by what people call them: model and sparsity."""
    return {f"{each.model} {each.sparsity:.0%}": each for each in settings_of(table)}


def scores_of(setting: Setting) -> pd.DataFrame:
    """Candidates x benchmarks of one block, the full model first, without averages."""
    table = published_table(setting.table)
    table = table[table["model"] == setting.model]
    table = table[table["sparsity"].isin([0.0, setting.sparsity])]
    table = table[table["benchmark"].isin(ABILITIES)]
    named = table.assign(candidate=_candidates(table))
    return score_table(named, by="candidate")


def _candidates(table: pd.DataFrame) -> list[str]:
    pairs = zip(table["criterion"], table["schedule"], strict=True)
    return [_candidate(criterion, schedule) for criterion, schedule in pairs]


def _candidate(criterion: str, schedule: str) -> str:
    if criterion == "full":
        return FULL
    label = criterion_label(criterion)
    return f"{label}, searched" if schedule == "evoesap" else label


def leaderboard(setting: Setting, weights: Mapping[str, float]) -> pd.DataFrame:
    """Candidates of one block, best average rank first.

    Args:
        weights: ability -> weight of the user's own average; an ability's benchmarks share it.

    Returns:
        ``candidate, average_rank, average`` and a column per benchmark. The full model has no rank
        and stands last. Ranks are over the benchmarks shown, ties at their mean.
    """
    scores = scores_of(setting)
    factors = ability_weights(scores.columns, ABILITIES, weights)
    average = weighted_average(scores, factors)
    table = scores.assign(average_rank=average_rank(scores.drop(index=FULL)), average=average)
    table = table.sort_values("average_rank", kind="stable", na_position="last")
    return table.rename_axis("candidate").reset_index()[
        ["candidate", "average_rank", "average", *scores.columns]
    ]


def source_of(table: str) -> str:
    """Paper, and number of the table."""
    first = published_table(table).iloc[0]
    return f"{PAPERS[first['paper']]}, Table {first['table']}"


def winner_chart(table: str) -> Drawing:
    """Winner map over all blocks of a table (arXiv:2606.15716, Figure 2)."""
    blocks = []
    for setting in settings_of(table):
        found = winners(scores_of(setting).drop(index=FULL))
        # The family alone: a cell of sixteen needs the room, and no table has two of one family.
        name = f"{setting.model.split('-')[0]} {setting.sparsity:.0%}"
        blocks.append(found.assign(setting=name))
    rows = pd.concat(blocks, ignore_index=True)
    rows = rows[["setting", *WINNER_COLUMNS]]
    return Drawing(
        "winner-map",
        lambda dark: winner_map.winner_map(rows, dark=dark),
        rows,
        winner_map.describe(rows),
        made_by(source_of(table)),
    )


def profile_chart(setting: Setting, *, radar: bool) -> Drawing:
    """Capability profile of one block, best average rank first (arXiv:2603.18492, Figure 3)."""
    scores = scores_of(setting)
    order = average_rank(scores.drop(index=FULL)).sort_values(kind="stable").index
    scores = scores.loc[[FULL, *order]]
    draw = capability.capability_radar if radar else capability.capability_dots
    return Drawing(
        "capability-radar" if radar else "capability",
        lambda dark: draw(scores, FULL, dark=dark),
        scores.rename_axis("candidate").reset_index(),
        capability.describe(scores, FULL),
        made_by(source_of(setting.table), setting.model, f"sparsity {setting.sparsity:.0%}"),
    )
