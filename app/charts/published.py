"""Charts of published results: winner map, capability profile, leaderboard."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

import pandas as pd

from analysis.criteria import criterion_label
from analysis.errors import StatsError, unknown_name
from analysis.ranking.leaderboard import (
    ability_weights,
    average_rank,
    score_table,
    weighted_average,
)
from analysis.ranking.published import ABILITIES, PAPERS, published_table
from app.charts import capability, winner_map
from app.charts.chart import Drawing, made_by
from app.charts.names import FULL

# Table -> description in the list.
TABLES: Final = {
    "unified-table-5": "Unified criteria, Table 5: C4 calibration, 16 benchmarks",
    "unified-table-1": "Unified criteria, Table 1: C4 calibration, abilities",
    "unified-table-2": "Unified criteria, Table 2: calibrated on the task",
    "evoesap-table-1": "EvoESAP, Table 1: uniform and searched, OLMoE and ERNIE",
    "evoesap-table-2": "EvoESAP, Table 2: uniform and searched, Qwen3",
    "evoesap-table-7": "EvoESAP, Table 7: coding",
    "evoesap-table-9": "EvoESAP, Table 9: multiple choice",
}
_SEARCHED: Final = {True: ", searched", False: ""}


@dataclass(frozen=True)
class Setting:
    """One block of a paper's table: a model at a sparsity."""

    table: str
    model: str
    sparsity: float


@dataclass(frozen=True)
class PaperChart:
    """A chart of published results: of a block of a paper's table, not of a local model."""

    name: str
    page: str
    title: str
    draw: Callable[[Setting], Drawing]


def published_settings(table: str) -> list[Setting]:
    """The blocks of a table, in its order; each includes its original model."""
    pruned = published_table(table).query("sparsity > 0")
    pairs = pruned[["model", "sparsity"]].drop_duplicates()
    return [Setting(table, model, float(sparsity)) for model, sparsity in pairs.to_numpy()]


def blocks_of(table: str) -> dict[str, Setting]:
    """The blocks of a table by display name: model and sparsity."""
    return {
        f"{setting.model} {setting.sparsity:.0%}": setting for setting in published_settings(table)
    }


def block_of(table: str, block: str | None) -> Setting:
    """The block "MODEL SPARSITY%" of a paper's table; None: the first."""
    if table not in TABLES:
        raise StatsError(unknown_name("table of a paper", table, TABLES))
    blocks = blocks_of(table)
    if block is None:
        return next(iter(blocks.values()))
    if block not in blocks:
        raise StatsError(unknown_name(f"block of {table}", block, blocks))
    return blocks[block]


def scores_of(setting: Setting) -> pd.DataFrame:
    """Candidates x benchmarks of one block, the original model first, without averages."""
    table = published_table(setting.table)
    table = table[table["model"] == setting.model]
    table = table[table["sparsity"].isin([0.0, setting.sparsity])]
    table = table[table["benchmark"].isin(ABILITIES)]
    names = [FULL if name == "full" else criterion_label(name) for name in table["criterion"]]
    is_searched = table["schedule"] == "evoesap"
    table = table.assign(candidate=pd.Series(names, table.index) + is_searched.map(_SEARCHED))
    return score_table(table, by="candidate")


def leaderboard(setting: Setting, weights: Mapping[str, float]) -> pd.DataFrame:
    """Table `candidate, average_rank, average` and a column per benchmark, best rank first.

    The original model has no rank and comes last. Ties have their mean rank.
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


def winners_of(table: str) -> Drawing:
    """Winner map over all blocks of a table (arXiv:2606.15716, Figure 2)."""
    # The family is enough: no table has two models of one.
    scores = {
        f"{setting.model.split('-')[0]} {setting.sparsity:.0%}": scores_of(setting).drop(index=FULL)
        for setting in published_settings(table)
    }
    return winner_map.winner_drawing(scores, made_by(source_of(table)), "winner-map")


def _draw(name: str, setting: Setting) -> Drawing:
    """A chart by its name; the profile of one block is as arXiv:2603.18492, Figure 3."""
    if name == "winner-map":
        return winners_of(setting.table)
    scores = scores_of(setting)
    order = average_rank(scores.drop(index=FULL)).sort_values(kind="stable").index
    about = made_by(source_of(setting.table), setting.model, f"sparsity {setting.sparsity:.0%}")
    return capability.capability_drawing(scores.loc[[FULL, *order]], about, name)


_TITLES: Final = {
    "capability": "What each candidate keeps of each benchmark",
    "winner-map": "Which candidate wins which benchmark, in every block of a table",
}
PAPER_CHARTS: Final = {
    name: PaperChart(name, "evaluate", title, partial(_draw, name))
    for name, title in _TITLES.items()
}
