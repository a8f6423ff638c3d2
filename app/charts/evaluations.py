"""A model's own evaluations as a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pandas as pd

from analysis.cache_keys import most_results
from analysis.criteria import criterion_label
from analysis.criteria.weight_based import RANDOM
from analysis.errors import StatsError
from pruning.measures.result import MEASURES, SampleCount, SampleValues, interval_or_none
from pruning.measures.store import readable_records
from pruning.plan.plan import NEURON_GRANULARITY
from pruning.plan.variant_words import variant_words
from pruning.planning.choice import corpora_words, schedule_words
from pruning.records.evaluation import (
    EvaluationRecord,
    EvaluationStore,
    evaluation_table,
)
from pruning.records.kept_answers import AnswerRecord
from pruning.records.lens import LensPlan
from pruning.records.quality import compared, is_random, record_ways

if TYPE_CHECKING:
    from app.loaded import Loaded

ALL_CORPORA: Final = "all corpora"  # the mean over corpora; no file has this name


def evaluations(loaded: Loaded) -> pd.DataFrame:
    """Table of `evaluation_results` of the model, not empty."""
    if loaded.choices.results.table is not None:
        return loaded.choices.results.table
    store = loaded.study.evaluations
    results = loaded.study.cached(stored_results, store, loaded.model.identity)
    if results.empty:
        raise StatsError(
            f"{loaded.model.name} has no evaluations yet; make some with `moeprune evaluate`."
        )
    return results


@most_results(4)
def stored_results(store: EvaluationStore, identity: str) -> pd.DataFrame:
    """`evaluation_results` the records of a model, with the draws of Random pooled."""
    return pool_draws(evaluation_results(readable_records(store, identity)[0]))


def evaluation_results(records: Sequence[EvaluationRecord]) -> pd.DataFrame:
    """`evaluation_table` with the columns `series` and `way`, and rows of ALL_CORPORA.

    `series` is the criterion, what ranked and the repair; empty for the original model. `way` is
    that of `record_ways`; it is part of the series, because no line may join two ways. If plans of
    one series and sparsity differ (manual ones, say), the later ones add their digest. All draws
    of Random are one series; see `pool_draws`. ALL_CORPORA has the mean over the corpora on which
    plans are compared; see `compared`. Sorted by corpus and series: colours must not depend on file
    names.
    """
    table = evaluation_table(records)
    ways = dict(zip([record.record_id for record in records], record_ways(records), strict=True))
    table = table.assign(series="", way=table["evaluation"].map(ways).astype(str))
    draws = table["criterion"].map(is_random).astype(bool)
    rows = table.to_dict("records")
    table["series"] = [
        series_name(row, row["way"]) if row["removed"] or row["bits"] or row["top_k"] else ""
        for row in rows
    ]
    in_time = table.sort_values("created_at", kind="stable")
    first = in_time.groupby(["series", in_time["removed"].round(4)])["plan"].transform("first")
    first = first.reindex(table.index).mask(draws, table["plan"])
    table["series"] = [
        f"{name}, plan {plan[:8]}" if name and plan != first_plan else name
        for name, plan, first_plan in zip(table["series"], table["plan"], first, strict=True)
    ]
    return _sort(pd.concat([table, _corpus_means(table)], ignore_index=True))


def _sort(table: pd.DataFrame) -> pd.DataFrame:
    by = ["over", "corpus", "series", "way", "removed"]
    ordered = table.assign(over=table["corpus"] != ALL_CORPORA).sort_values(by, ignore_index=True)
    return ordered.drop(columns="over")


def _corpus_means(results: pd.DataFrame) -> pd.DataFrame:
    """Rows of ALL_CORPORA: plans measured in the usual setup on all compared corpora.

    Corpora count equally and are independent, so the squares of their intervals add up.
    """
    rows = results[results["way"] == ""].sort_values("created_at", kind="stable")
    measured = [frozenset(group) for _, group in rows.groupby("plan")["corpus"]]
    corpora = compared(measured) if measured else ()
    if len(corpora) < 2:
        return results.iloc[:0]
    rows = _through(np.log, rows[rows["corpus"].isin(corpora)])
    rows = rows.assign(below=(rows["mean"] - rows["low"]) ** 2)
    rows = rows.assign(above=(rows["high"] - rows["mean"]) ** 2)
    keys = ["plan", "series", "measure"]
    groups = rows.drop_duplicates([*keys, "corpus"], keep="last").groupby(keys, sort=False)
    means = groups.tail(1).set_index(keys)
    for name in ("mean", "pooled", "full"):
        means[name] = groups[name].mean()
    means["num_documents"] = groups["num_documents"].min()
    for name, side, sign in (("low", "below", -1), ("high", "above", 1)):
        spread = np.sqrt(groups[side].sum(min_count=len(corpora))) / len(corpora)
        means[name] = means["mean"] + sign * spread
    complete = (groups.size() == len(corpora)).reindex(means.index)
    means = means[complete].reset_index().assign(corpus=ALL_CORPORA)
    return _through(np.exp, means)[list(results.columns)]


def intervals_of(results: pd.DataFrame) -> str:
    """What the intervals of rows of `evaluation_results` are, for people: by so many documents."""
    usual = results.loc[results["way"] == "", ["num_samples", "num_documents"]]
    documents = usual["num_documents"].dropna()
    fewest = int(documents.min()) if len(documents) else None
    words = SampleCount(len(usual), fewest).interval_words
    words += " (the corpus with the fewest)" * (len(set(documents)) > 1)
    is_pooled = (results["criterion"] == RANDOM.name) & (results["plan"] == "")
    return f"{words}; of Random over its draws" if is_pooled.any() else words


def _through(function: Callable[..., Any], rows: pd.DataFrame) -> pd.DataFrame:
    """Apply a function to the numbers of perplexities, whose logarithms add up."""
    is_log = rows["measure"].map(lambda name: MEASURES[name].is_log).astype(bool)
    numbers = rows[["mean", "pooled", "low", "high", "full"]].copy()
    numbers[is_log] = function(numbers[is_log])
    return rows.assign(**numbers)


def pool_draws(results: pd.DataFrame) -> pd.DataFrame:
    """`evaluation_results` with one row for all draws of Random at a sparsity.

    `mean` and `pooled` are means over draws, `low` and `high` the 95% bootstrap interval of that
    mean over draws, on the same texts; `plan` and `sparsity` are empty, `evaluation` is that of the
    last draw.
    """
    is_draw = results["criterion"].map(is_random).astype(bool)
    if not is_draw.any():
        return results
    keys = ["corpus", "series", "way", "measure", "share"]
    rows = results[is_draw].assign(share=results["removed"].round(4))
    # Requests for the same plan, such as a share and a count, are one draw.
    groups = rows.drop_duplicates([*keys, "plan"], keep="last").groupby(keys, sort=False)
    pools = groups.tail(1).set_index(keys)
    several, means = (groups.size() > 1).reindex(pools.index), groups["mean"]
    draws = (SampleValues(means.get_group(key).to_numpy()) for key in pools.index)
    bounds = [interval_or_none(draw) for draw in draws]
    low, high = np.array(bounds, dtype=np.float64).T
    pools = pools.assign(
        criterion=RANDOM.name,
        mean=groups["mean"].mean(),
        pooled=groups["pooled"].mean(),
        low=pools["low"].mask(several, low),
        high=pools["high"].mask(several, high),
        plan=pools["plan"].mask(several, ""),
        sparsity=pools["sparsity"].mask(several, ""),
    )
    return _sort(pd.concat([results[~is_draw], pools.reset_index()[list(results.columns)]]))


def pool_means(table: pd.DataFrame, keys: Sequence[str], means: Sequence[str]) -> pd.DataFrame:
    """The table with one row for all draws of Random of the same `keys`: their mean of `means`.

    Other columns are those of the last draw. `table` names the criterion and the plan.
    """
    is_draw = table["criterion"].map(str).map(is_random).astype(bool)
    if not is_draw.any():
        return table
    rows = table[is_draw].drop_duplicates([*keys, "plan"], keep="last")
    groups = rows.groupby(list(keys), sort=False)
    pools = groups.tail(1).set_index(list(keys))
    pools = pools.assign(**{name: groups[name].mean() for name in means}).reset_index()
    return pd.concat([table[~is_draw], pools[list(table.columns)]], ignore_index=True)


def plan_name(part: AnswerRecord | LensPlan) -> str:
    """Display name of the plan that a record, or a part of one, is of."""
    return series_name({**part.plan.columns, "plan": part.plan_digest})


def series_name(row: Mapping[Any, object], way: str = "") -> str:
    """Display name of a series: criterion, corpora, schedule, granularity, repair, `way`.

    All draws of Random are one series, and one if they are repaired.
    """
    name, schedule = str(row["criterion"]), schedule_words(str(row["schedule"]))
    name = RANDOM.name if is_random(name) else name
    ranked_on = corpora_words(str(row["calibrated_on"]).split("+"))
    # Schedules of neurons say so.
    by_neuron = row["granularity"] == NEURON_GRANULARITY and "neurons" not in schedule
    other = f"plan {str(row['plan'])[:8]}" if row["removed"] else "original"
    words = (
        criterion_label(name) if name else other,
        f"on {ranked_on}" if ranked_on else "",
        schedule,
        "neurons" if by_neuron else "",
    )
    plan = ", ".join(filter(None, words))
    plan += variant_words(
        str(row["repaired_on"]),
        str(row["calibrated_on"]),
        str(row.get("bits", "")),
        str(row.get("top_k", "")),
        int(str(row.get("repair_tokens", 0))),
    )
    return ", ".join(filter(None, (plan, way)))


def measures_of(results: pd.DataFrame) -> list[str]:
    """The measures of a table, in the order of MEASURES."""
    measured = set(results["measure"].unique())
    return [name for name in MEASURES if name in measured]


def usual_measure(results: pd.DataFrame) -> str:
    """The default measure: the loss, if measured."""
    measures = measures_of(results)
    return "nll" if "nll" in measures else measures[0]


def is_share(removed: pd.Series[float], share: float) -> pd.Series[bool]:
    """Rows of this sparsity, up to rounding."""
    return (removed - share).abs() < 5e-5
