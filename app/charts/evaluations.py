"""A model's own evaluations as a table: series of plans, and what they get at a share removed."""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence

import pandas as pd

from analysis.criteria.weight_based import RANDOM
from analysis.errors import StatsError
from app.charts.context import Context
from app.charts.names import criterion_label
from pruning.evaluate.quality import is_random
from pruning.evaluate.record import EvaluationRecord, EvaluationStore, evaluation_table
from pruning.evaluate.result import MEASURES, bootstrap_interval
from pruning.plan import ATOMIC_GRANULARITY


def evaluations(context: Context) -> pd.DataFrame:
    """Table of `results_of`: what was measured of candidates of the model; not empty."""
    if context.results.table is not None:
        return context.results.table
    records = EvaluationStore(context.store.directories).records(context.model.identity)
    if not records:
        raise StatsError(
            f"{context.model.name} has no evaluations yet; make some with `moeprune evaluate`."
        )
    return pool_draws(results_of(records))


def results_of(records: Sequence[EvaluationRecord]) -> pd.DataFrame:
    """`evaluation_table` with the column `series`: criterion and what ranked; empty: unpruned.

    Sorted by corpus and series: a candidate's colour must not depend on the names of files. What
    was measured in another way than most, which no line may join, says so in its series and in
    the column `way`, which is empty for the others; of the unpruned model it comes last. Where
    plans of one name and share differ (by hand, say), those measured later add their digest. All
    draws of Random are one series, see `pool_draws`.
    """
    table = evaluation_table(records)
    ways = {
        each.record_id: f"{each.num_samples} samples, {each.settings['dtype']}" for each in records
    }
    usual = next((way for way, _ in Counter(ways.values()).most_common(1)), "")
    odd = {name: "" if way == usual else way for name, way in ways.items()}
    table = table.assign(series="", way=table["evaluation"].map(odd).astype(str))
    draws = table["criterion"].map(is_random).astype(bool)
    rows = table.assign(criterion=table["criterion"].mask(draws, RANDOM.name)).to_dict("records")
    table["series"] = [series_name(row, row["way"]) if row["removed"] else "" for row in rows]
    in_time = table.sort_values("created_at", kind="stable")
    first = in_time.groupby(["series", in_time["removed"].round(4)])["plan"].transform("first")
    known = first.reindex(table.index).mask(draws, table["plan"])
    named = zip(table["series"], table["plan"], known, strict=True)
    table["series"] = [
        f"{name}, plan {plan[:8]}" if name and plan != known else name
        for name, plan, known in named
    ]
    return table.sort_values(["corpus", "series", "way", "removed"], ignore_index=True)


def pool_draws(results: pd.DataFrame) -> pd.DataFrame:
    """`results_of` with one row for all draws of Random at a share: what chance costs.

    `mean` and `pooled` are means over draws, `low` and `high` the 95% bootstrap interval of the
    mean over draws; `plan` and `sparsity` are empty, `evaluation` is that of the last draw.
    """
    drawn = results["criterion"].map(is_random).astype(bool)
    keys = ["corpus", "series", "way", "measure", results["removed"].round(4).rename("share")]
    pooled = [results[~drawn]]
    for _, rows in results[drawn].groupby(keys, sort=False):
        # Two ways to the same plan, such as a share and a number of experts, are one draw.
        draws = rows.drop_duplicates("plan", keep="last")
        if len(draws) < 2:
            pooled.append(draws)
            continue
        low, high = bootstrap_interval(draws["mean"].to_numpy())
        means = {"mean": draws["mean"].mean(), "pooled": draws["pooled"].mean()}
        words = dict.fromkeys(("plan", "sparsity"), "")
        pooled.append(
            draws.tail(1).assign(criterion=RANDOM.name, **words, **means, low=low, high=high)
        )
    found = pd.concat(pooled, ignore_index=True)
    return found.sort_values(["corpus", "series", "way", "removed"], ignore_index=True)


def series_name(row: Mapping[Hashable, object], way: str = "") -> str:
    """What a person calls a series of plans: criterion, what ranked, schedule, units, `way`."""
    name, schedule = str(row["criterion"]), str(row["schedule"])
    # Schedules of neurons say so themselves.
    is_atomic = row["granularity"] == ATOMIC_GRANULARITY and "neurons" not in schedule
    words = (
        criterion_label(name) if name else f"plan {str(row['plan'])[:8]}",
        f"on {row['calibrated_on']}" if row["calibrated_on"] else "",
        schedule if schedule != "uniform" else "",
        "neurons" if is_atomic else "",
        way,
    )
    return ", ".join(filter(None, words))


def measures_of(results: pd.DataFrame) -> list[str]:
    """The measures that were taken, in the order of MEASURES."""
    return [name for name in MEASURES if name in set(results["measure"])]


def usual_measure(results: pd.DataFrame) -> str:
    """What is shown at first: the loss, which everybody knows, where it was taken."""
    taken = measures_of(results)
    return "nll" if "nll" in taken else taken[0]


def is_share(removed: "pd.Series[float]", share: float) -> "pd.Series[bool]":
    """Where this share was removed, up to the rounding of `shares_of`."""
    return (removed - share).abs() < 5e-5


def shares_of(results: pd.DataFrame) -> list[str]:
    """Shares of the expert weights that were removed, as percentages, smallest first."""
    removed = sorted({round(share, 4) for share in results["removed"] if share > 0})
    return [f"{100 * share:.2f}".rstrip("0").rstrip(".") + "%" for share in removed]


def of_plan(results: pd.DataFrame, measure: str, plan: str) -> pd.DataFrame:
    """What the plan of this digest gets, a row a corpus; as most were measured, else newest."""
    rows = results[(results["measure"] == measure) & (results["plan"] == plan)]
    rows = rows.assign(usual=rows["way"] == "").sort_values(["usual", "created_at"])
    rows = rows.drop_duplicates("corpus", keep="last").drop(columns="usual")
    return rows.sort_values("corpus", ignore_index=True)
