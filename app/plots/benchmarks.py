"""The charts over a model's own benchmark results: leaderboard, profile, winners, memory."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pandas as pd

from analysis.ranking.leaderboard import (
    WINNER_COLUMNS,
    average_rank,
    score_table,
    weighted_average,
    winners,
)
from app.charts.chart import Drawing, made_by
from app.figures import capability, winner_map
from app.plots.evaluations import is_share, series_name
from app.plots.names import FULL
from app.plots.pareto import Quality, drawn
from pruning.evaluate.benchmarks.record import BenchmarkRecord
from pruning.evaluate.benchmarks.table import benchmark_table

# Of several ways to score a task the first that is there; the others stay in the records.
_METRICS: Final = ("acc_norm", "exact_match", "pass@1", "f1", "acc", "mean_acc")
_Z_95: Final = 1.96  # standard errors on each side of 95% of a normal distribution
LEADERBOARD_COLUMNS = ("candidate", "average_rank", "average", "stderr", "bytes", "memory_saved")


@dataclass(frozen=True, eq=False)
class Board:
    """The candidates of one model, benchmarked in one way, that lost the same share or any.

    Args:
        rows: of `benchmark_results`, one for each candidate and task.
        model: its name, for the provenance of figures.
        about: how it was benchmarked, and which share went.
    """

    rows: pd.DataFrame
    model: str
    about: str

    @property
    def tasks(self) -> list[str]:
        """The benchmarks, as columns are called."""
        return list(dict.fromkeys(self.rows["benchmark"]))

    @property
    def has_pruned(self) -> bool:
        """Whether there is anything beside the full model."""
        return bool((self.rows["series"] != FULL).any())

    def scores(self) -> pd.DataFrame:
        """Candidates x benchmarks, the full model first."""
        return self._table("value")

    def errors(self) -> pd.DataFrame:
        """Standard errors of `scores`; NaN where the tool gave none."""
        return self._table("stderr")

    def _table(self, column: str) -> pd.DataFrame:
        table = score_table(self.rows.assign(score=self.rows[column]), by="series")
        return table.reindex([FULL, *table.index.drop(FULL)]) if FULL in table.index else table


def benchmark_results(records: Sequence[BenchmarkRecord]) -> pd.DataFrame:
    """`benchmark_table` of whole tasks, one metric of each, with four more columns.

    `series` is what people call the candidate, `benchmark` the task, with its metric where that is
    not one of the usual, `way` the tool and its settings, see `way_of`, `dtype` the element type of
    the computation or empty: only what was made in one way may be held against each other. Of a
    candidate that was benchmarked twice in one way, the newest stays. Measures of which less is
    better are left out: they are no shares of right answers. `stderr` is the tool's, and what
    Wilson's interval gives where all answers are right or all wrong.
    """
    table = benchmark_table(records)
    ways = {record.record_id: way_of(record.source, record.settings) for record in records}
    types = {record.record_id: str(record.settings.get("dtype") or "") for record in records}
    table = table.assign(
        stderr=_errors(table),
        way=table["record"].map(ways).astype(str),
        dtype=table["record"].map(types).astype(str),
        series=[_series(row) for row in table.to_dict("records")],
    )
    table = table[(table["group"] == "") & table["higher_is_better"]]
    order = {name: place for place, name in enumerate(_METRICS)}
    # `metric,way`: of several ways to read an answer.
    place = table["metric"].str.split(",").str[0].map(order).fillna(len(order))
    table = table.assign(place=place).sort_values(["place", "metric", "created_at"], kind="stable")
    table = table.drop_duplicates(["way", "series", "task", "metric"], keep="last")
    table = table.drop_duplicates(["way", "series", "task"], keep="first")
    named = [
        task if rank < len(order) else f"{task} ({metric})"
        for task, rank, metric in zip(table["task"], table["place"], table["metric"], strict=True)
    ]
    table = table.assign(benchmark=named).drop(columns="place")
    return table.sort_values(["way", "removed", "series", "benchmark"], ignore_index=True)


def _errors(table: pd.DataFrame) -> pd.Series:
    """Standard errors that take no score for certain; NaN where nothing is known.

    A tool's error is 0 where every question has the same score. Of 0 or n right answers of n
    Wilson's 95% interval has the length z^2 / (n + z^2), which is z standard errors here
    (E. B. Wilson, J. Am. Stat. Assoc. 22, 1927).
    """
    same = (table["stderr"] == 0) & ((table["value"] <= 0) | (table["value"] >= 1))
    return table["stderr"].mask(same, _Z_95 / (table["num_samples"] + _Z_95**2))


def _series(row: Mapping[Any, Any]) -> str:
    if row["candidate"] == "full":
        return FULL
    if not row["criterion"] or pd.isna(row["removed"]):
        return str(row["candidate"])
    return f"{series_name(row)}, {row['removed']:.0%}"


def way_of(source: str, settings: Mapping[str, Any]) -> str:
    """How a benchmark was run, in words: the tool, and what of its settings is not usual."""
    words = [source]
    limit, shots = settings.get("limit"), settings.get("num_fewshot")
    if limit:
        words.append(f"{limit:.0%} of the questions" if limit < 1 else f"{limit:g} questions")
    if shots is not None:
        words.append(f"{shots} examples")
    words += ["as a conversation"] if settings.get("chat_template") else []
    words += [str(settings["dtype"])] if settings.get("dtype") else []
    return ", ".join(words)


def ways_of(results: pd.DataFrame) -> list[str]:
    """The ways in which something was benchmarked, that of most candidates first."""
    counts = results.drop_duplicates(["way", "series"])["way"].value_counts(sort=True)
    return [str(name) for name in counts.index]


def shares_of(results: pd.DataFrame, way: str) -> list[float]:
    """Shares of the expert weights that candidates lost, smallest first."""
    rows = results[(results["way"] == way) & (results["removed"] > 0)]
    return sorted({round(float(share), 4) for share in rows["removed"]})


def board_of(results: pd.DataFrame, way: str, share: float | None, model: str) -> Board:
    """The candidates that lost this share, and the full model; None: all of them."""
    rows = results[results["way"] == way]
    if share is not None:
        rows = rows[is_share(rows["removed"], share) | (rows["series"] == FULL)]
    about = way if share is None else f"{way}, {share:.0%} removed"
    return Board(rows.reset_index(drop=True), model, about)


def own_leaderboard(board: Board, weights: Mapping[str, float]) -> pd.DataFrame:
    """Candidates, best average rank first; the full model, which has no rank, last.

    Nor have candidates whose benchmarks nobody else has, see `ranks`.

    Args:
        board: the candidates.
        weights: benchmark -> weight in the average; those that are absent count 1.

    Returns:
        LEADERBOARD_COLUMNS and a column for each benchmark. ``stderr`` is that of the average,
        with the tasks taken as independent; NaN where a task that counts has none.
    """
    scores = board.scores()
    rank = average_rank(scores.drop(index=FULL, errors="ignore"))
    by_name = board.rows.drop_duplicates("series").set_index("series")
    whole = by_name["bytes"].get(FULL, float("nan"))
    table = scores.assign(
        average_rank=rank,
        average=weighted_average(scores, weights),
        stderr=average_error(board.errors(), weights),
        bytes=by_name["bytes"],
        memory_saved=1 - by_name["bytes"] / whole,
    )
    # By name as well: a candidate without a rival has no rank either.
    table = table.assign(whole=table.index == FULL).sort_values(
        ["whole", "average_rank", "average"], ascending=[True, True, False], kind="stable"
    )
    return table.rename_axis("candidate").reset_index()[[*LEADERBOARD_COLUMNS, *scores.columns]]


def average_error(errors: pd.DataFrame, weights: Mapping[str, float]) -> pd.Series:
    """Standard error of `weighted_average`: sqrt(sum of (w / sum of w)^2 stderr^2)."""
    factors = pd.Series({name: float(weights.get(name, 1.0)) for name in errors.columns})
    counted = factors[factors > 0]
    return ((errors[counted.index] ** 2) @ ((counted / counted.sum()) ** 2)).pow(0.5)


def own_profile_chart(board: Board, *, radar: bool) -> Drawing:
    """What each candidate keeps of each benchmark, best average rank first."""
    order = [name for name in own_leaderboard(board, {})["candidate"] if name != FULL]
    scores = board.scores()
    scores = scores.loc[[*(name for name in (FULL,) if name in scores.index), *order]]
    draw = capability.capability_radar if radar else capability.capability_dots
    return Drawing(
        "own-capability-radar" if radar else "own-capability",
        lambda dark: draw(scores, FULL, dark=dark),
        scores.rename_axis("candidate").reset_index(),
        capability.describe(scores, FULL),
        made_by(board.model, board.about),
    )


def own_winners_chart(results: pd.DataFrame, way: str, model: str) -> Drawing | None:
    """The best candidate of each benchmark at each share; None where nothing was pruned."""
    blocks = []
    for share in shares_of(results, way):
        scores = board_of(results, way, share, model).scores().drop(index=FULL, errors="ignore")
        # The row says the share; a candidate has one colour in all of them.
        end = f", {share:.0%}"
        scores = scores.rename(index={name: str(name).removesuffix(end) for name in scores.index})
        blocks.append(winners(scores).assign(setting=f"{share:.0%} removed"))
    if not blocks:
        return None
    rows = pd.concat(blocks, ignore_index=True)
    rows = rows[["setting", *WINNER_COLUMNS]]
    return Drawing(
        "benchmark-winner-map",
        lambda dark: winner_map.winner_map(rows, dark=dark),
        rows,
        winner_map.describe(rows),
        made_by(model, way),
    )


def benchmark_pareto_chart(board: Board, weights: Mapping[str, float]) -> Drawing | None:
    """The user's average against memory; None where no pruned candidate has both numbers."""
    found = drawn(benchmark_points(board, weights), Quality("Average", "average score", True))
    return Drawing("benchmark-pareto", *found, made_by(board.model, board.about)) if found else None


def benchmark_points(board: Board, weights: Mapping[str, float]) -> pd.DataFrame:
    """The columns that `pareto_table` takes, with the 95% interval of a normal distribution."""
    table = own_leaderboard(board, weights)
    removed = board.rows.drop_duplicates("series").set_index("series")["removed"]
    spread = _Z_95 * table["stderr"].astype(np.float64)
    return table.assign(
        value=table["average"],
        low=table["average"] - spread,
        high=table["average"] + spread,
        is_full=table["candidate"] == FULL,
        removed=table["candidate"].map(removed),
    )
