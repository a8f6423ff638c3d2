"""A model's own benchmark results: the leaderboard, and the chart of its candidates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import pandas as pd

from analysis.errors import StatsError
from analysis.ranking.leaderboard import average_rank, score_table, weighted_average
from app.charts import capability
from app.charts.chart import Drawing, chart, made_by, model_fact
from app.charts.evaluations import is_share, pool_means, series_name
from app.charts.names import FULL
from app.choices import ALL_SHARES, EVERY, result_words, unless
from pruning.benchmarks.record import BenchmarkRecord, BenchmarkStore, benchmark_table, way_of

if TYPE_CHECKING:
    from app.loaded import Loaded

# Of several metrics of a task the first available; the others stay in the records.
_METRICS: Final = ("acc_norm", "exact_match", "pass@1", "f1", "acc")
_Z_95: Final = 1.96  # standard errors on each side of 95% of a normal distribution
LEADERBOARD_COLUMNS = ("candidate", "average_rank", "average", "stderr", "bytes", "memory_saved")


@dataclass(frozen=True, eq=False)
class Board:
    """The candidates of one model in one setup, of one sparsity or any."""

    rows: pd.DataFrame
    model: str
    about: str

    @property
    def tasks(self) -> list[str]:
        """The benchmarks, as columns of `scores`."""
        return list(dict.fromkeys(self.rows["benchmark"]))

    @property
    def has_pruned(self) -> bool:
        """Whether there is a pruned candidate."""
        return bool((self.rows["series"] != FULL).any())

    def scores(self) -> pd.DataFrame:
        """Candidates x benchmarks, the original model first."""
        return self._table("value")

    def errors(self) -> pd.DataFrame:
        """Standard errors of `scores`; NaN if the tool gave none."""
        return self._table("stderr")

    def kept_least(self, candidate: str) -> str:
        """The benchmark on which a candidate keeps the smallest share of the original's score."""
        scores = self.scores()
        if FULL not in scores.index:
            return ""
        full, kept = scores.loc[FULL], scores.loc[candidate]
        shares = {task: kept[task] / full[task] for task in self.tasks if full[task] > 0}
        task = min(shares, key=shares.__getitem__, default="")
        if not task or not shares[task] < 1:
            return ""
        return f"The first keeps least of {task}: {kept[task]:.3f} of {full[task]:.3f}."

    def _table(self, column: str) -> pd.DataFrame:
        table = score_table(self.rows.assign(score=self.rows[column]), by="series")
        return table.reindex([FULL, *table.index.drop(FULL)]) if FULL in table.index else table


def benchmark_scores(records: Sequence[BenchmarkRecord]) -> pd.DataFrame:
    """`benchmark_table` of whole tasks, with one metric each and four more columns.

    `series` is the display name of the candidate, with its repair; `benchmark` the task, with an
    unusual metric in parentheses; `way` the tool and its settings (see `way_of`): only results of
    one way are comparable; `dtype` that of the computation, if known. Of repeated benchmarks the
    newest stays; draws of Random are one candidate with the means of their scores and standard
    errors. Metrics where lower is better are left out: they are no shares of right answers.
    `stderr` is the tool's; Wilson's interval gives it where all or no answers are right.
    """
    table = benchmark_table(records)
    ways = {record.record_id: way_of(record.settings) for record in records}
    types = {record.record_id: str(record.settings.get("dtype") or "") for record in records}
    # A tool's error is 0 if all questions have the same score, which is too certain. For 0 or n
    # right answers of n, Wilson's 95% interval has the length z^2 / (n + z^2), here z standard
    # errors (E. B. Wilson, J. Am. Stat. Assoc. 22, 1927).
    same = (table["stderr"] == 0) & ((table["value"] <= 0) | (table["value"] >= 1))
    names = [
        FULL
        if row["candidate"] == "full"
        else str(row["candidate"])
        if not row["criterion"] or pd.isna(row["removed"])
        else f"{series_name(row)}, {row['removed']:.0%}"
        for row in table.to_dict("records")
    ]
    table = table.assign(
        stderr=table["stderr"].mask(same, _Z_95 / (table["num_samples"] + _Z_95**2)),
        way=table["record"].map(ways).astype(str),
        dtype=table["record"].map(types).astype(str),
        series=names,
    )
    table = table[(table["group"] == "") & table["higher_is_better"]]
    order = {name: place for place, name in enumerate(_METRICS)}
    # The tool writes `metric,filter`, for several ways to extract an answer.
    place = table["metric"].str.split(",").str[0].map(order).fillna(len(order))
    table = table.assign(place=place).sort_values(["place", "metric", "created_at"], kind="stable")
    table = pool_means(table, ["way", "series", "task", "metric"], ["value", "stderr"])
    table = table.sort_values(["place", "metric", "created_at"], kind="stable")
    table = table.drop_duplicates(["way", "series", "task", "metric"], keep="last")
    table = table.drop_duplicates(["way", "series", "task"], keep="first")
    benchmarks = [
        task if rank < len(order) else f"{task} ({metric})"
        for task, rank, metric in zip(table["task"], table["place"], table["metric"], strict=True)
    ]
    table = table.assign(benchmark=benchmarks).drop(columns="place")
    return table.sort_values(["way", "removed", "series", "benchmark"], ignore_index=True)


def ways_of(results: pd.DataFrame) -> list[str]:
    """The benchmark setups, the one with most candidates first."""
    counts = results.drop_duplicates(["way", "series"])["way"].value_counts()
    return sorted(map(str, counts.index), key=lambda way: (-counts[way], way))


def sparsities_of(results: pd.DataFrame, way: str) -> list[float]:
    """Sparsities of the candidates, smallest first."""
    rows = results[(results["way"] == way) & (results["removed"] > 0)]
    return sorted({round(float(share), 4) for share in rows["removed"]})


def board_of(results: pd.DataFrame, way: str, share: float | None, model: str) -> Board:
    """The candidates at this sparsity (None: all) and the original model."""
    rows = results[results["way"] == way]
    if share is not None:
        rows = rows[is_share(rows["removed"], share) | (rows["series"] == FULL)]
    about = way if share is None else f"{way}, {share:.0%} sparsity"
    return Board(rows.reset_index(drop=True), model, about)


def own_leaderboard(board: Board, weights: Mapping[str, float]) -> pd.DataFrame:
    """Table of LEADERBOARD_COLUMNS and a column per benchmark, best average rank first.

    The original model, which comes last, and candidates without a rival have no rank. `stderr` is
    that of the average over independent tasks; NaN if a task with a weight has none. The default
    weight is 1.
    """
    scores = board.scores()
    rank = average_rank(scores.drop(index=FULL, errors="ignore"))
    by_name = board.rows.drop_duplicates("series").set_index("series")
    full_bytes = by_name["bytes"].get(FULL, float("nan"))
    # The standard error of a weighted mean: sqrt(sum of (w / sum of w)^2 stderr^2).
    factors = pd.Series({name: float(weights.get(name, 1.0)) for name in scores.columns})
    factors = factors[factors > 0] / factors.sum()
    table = scores.assign(
        average_rank=rank,
        average=weighted_average(scores, weights),
        stderr=((board.errors()[factors.index] ** 2) @ factors**2).pow(0.5),
        bytes=by_name["bytes"],
        memory_saved=1 - by_name["bytes"] / full_bytes,
    )
    # By `is_full` first: candidates without a rival have no rank either.
    table = table.assign(is_full=table.index == FULL).sort_values(
        ["is_full", "average_rank", "average"], ascending=[True, True, False], kind="stable"
    )
    return table.rename_axis("candidate").reset_index()[[*LEADERBOARD_COLUMNS, *scores.columns]]


def percent(share: float) -> str:
    """A share in percent, with one decimal if needed."""
    return f"{share:.1%}".replace(".0%", "%")


def chosen_scores(loaded: Loaded) -> tuple[pd.DataFrame, str]:
    """Benchmark results of the model's candidates, and the setup to show."""
    results = loaded.choices.results.table
    if results is None:
        results = benchmark_scores(loaded.study.records(BenchmarkStore)[0])
    if results.empty:
        raise StatsError(
            f"{loaded.model.name} has no benchmark results yet; see `moeprune benchmark`."
        )
    ways, way = ways_of(results), loaded.choices.results.way
    if way and way not in ways:
        raise StatsError(f"No benchmark was run with {way!r}; --way takes: {'; '.join(ways)}.")
    return results, way or ways[0]


@chart("own-capability", "evaluate")
def dots(loaded: Loaded) -> Drawing:
    """What own candidates keep of each benchmark, best average rank first.

    By default at the sparsity nearest to 50%.
    """
    results, way = chosen_scores(loaded)
    usual = min(sparsities_of(results, way), key=lambda sparsity: abs(sparsity - 0.5), default=None)
    removed = loaded.choices.results.removed
    share = usual if removed is None else None if removed == ALL_SHARES else removed
    board = board_of(results, way, share, loaded.model.name)
    scores = board.scores()
    order = [name for name in own_leaderboard(board, {})["candidate"] if name != FULL]
    scores = scores.loc[[*scores.index.intersection([FULL]), *order]]
    chart = capability.capability_drawing(scores, made_by(model_fact(loaded), board.about))
    at = None if share == usual else EVERY if share is None else f"{share:.4g}"
    options = result_words(way=unless(way, ways_of(results)[0]), at=at)
    return replace(chart, options=options)
