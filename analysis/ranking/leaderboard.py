"""Which candidate is best, per benchmark and overall: ranks, winners, Pareto front."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import ArrayLike

from analysis.errors import UserError
from analysis.lazy import pd
from analysis.numbers.arrays import BoolArray

WINNER_COLUMNS = ("benchmark", "winner", "score", "margin", "tied", "candidates")
_RIVALS = 2  # fewest candidates that are ranked


def score_table(results: pd.DataFrame, by: str = "criterion") -> pd.DataFrame:
    """Scores with a row per candidate and a column per benchmark, both in order of appearance.

    `results` has `benchmark, score` and the column `by`, one score for each pair.
    """
    twice = results[results.duplicated([by, "benchmark"])]
    if len(twice):
        first = twice.iloc[0]
        raise UserError(
            f"{first[by]} has two scores on {first['benchmark']}; select one model, sparsity, "
            "schedule and table."
        )
    table = results.pivot_table(index=by, columns="benchmark", values="score", dropna=False)
    return table.reindex(index=results[by].unique(), columns=results["benchmark"].unique())


def ranks(scores: pd.DataFrame) -> pd.DataFrame:
    """Rank on each benchmark, 1 = best; equal scores share the mean of their ranks.

    NaN where fewer than two candidates have a score.
    """
    contested = scores.loc[:, scores.count() >= _RIVALS]
    return contested.rank(ascending=False, method="average").reindex(columns=scores.columns)


def average_rank(scores: pd.DataFrame) -> pd.Series:
    """Mean rank over the benchmarks, lower = better (arXiv:2606.15716, Table 1).

    Only over benchmarks that rank the candidate, see `ranks`; NaN if none does.
    """
    return ranks(scores).mean(axis=1).rename("average_rank")


def weighted_average(scores: pd.DataFrame, weights: Mapping[str, float]) -> pd.Series:
    """The user's own average of the benchmarks; the default weight is 1.

    NaN where a benchmark with weight has no score.
    """
    factors = pd.Series({name: float(weights.get(name, 1.0)) for name in scores.columns})
    if (factors < 0).any() or factors.sum() <= 0:
        raise UserError("Weights must be 0 or more, and at least one greater than 0.")
    counted = factors[factors > 0]
    return (scores[counted.index] @ (counted / counted.sum())).rename("average")


def ability_weights(
    benchmarks: Iterable[str], abilities: Mapping[str, str], weights: Mapping[str, float]
) -> dict[str, float]:
    """Weight of each benchmark if abilities are weighted: its benchmarks share an ability's weight.

    Benchmarks without an ability get 0; the default weight of an ability is 1.
    """
    names = [name for name in benchmarks if name in abilities]
    members = Counter(abilities[name] for name in names)
    return {
        name: weights.get(abilities[name], 1.0) / members[abilities[name]]
        if name in abilities
        else 0.0
        for name in benchmarks
    }


def winners(scores: pd.DataFrame) -> pd.DataFrame:
    """WINNER_COLUMNS: the best candidate of each benchmark (arXiv:2606.15716, Figure 2).

    `margin` is the distance to the best loser; `tied` counts the winners, of which the first is
    named; `candidates` counts those with a score. The winner is empty if fewer than two candidates
    have a score, or none scores above 0.
    """
    rows = []
    for benchmark in scores.columns:
        column = scores[benchmark].dropna()
        best = column.max() if len(column) else 0.0
        if not best > 0 or len(column) < _RIVALS:
            rows.append((benchmark, "", float(best), 0.0, 0, len(column)))
            continue
        beaten = column[column < best]
        margin = best - beaten.max() if len(beaten) else 0.0
        tied = int((column == best).sum())
        won = (benchmark, str(column.idxmax()), float(best), float(margin), tied, len(column))
        rows.append(won)
    return pd.DataFrame(rows, columns=list(WINNER_COLUMNS))


def pareto_front(cost: ArrayLike, quality: ArrayLike, *, higher_is_better: bool) -> BoolArray:
    """(candidates,) True where no other candidate is at least as good in both, and better in one.

    Lower cost is better. Candidates equal in both do not beat each other; one with a NaN is never
    on the front.
    """
    costs, worth = np.asarray(cost, dtype=np.float64), np.asarray(quality, dtype=np.float64)
    if costs.shape != worth.shape or costs.ndim != 1:
        raise ValueError(f"costs and qualities of shapes {costs.shape} and {worth.shape}")
    gains = worth if higher_is_better else -worth
    front = np.zeros(len(costs), dtype=np.bool_)
    last: tuple[float, float] | None = None
    # By cost, then best first, so that each only has to beat the last one on the front.
    for place in np.lexsort((-gains, costs)):
        here = float(costs[place]), float(gains[place])
        if np.isfinite(here).all() and (last is None or here[1] > last[1] or here == last):
            front[place], last = True, here
    return front
