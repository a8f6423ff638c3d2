"""Reports of EvalScope, one file a data set: metrics of categories of subsets -> scores.

Read in both forms: a metric has a `name` (versions 0.15 to 1.x), or an `identity` and `semantics`
that say its direction (schema_version 2, 1.11).
"""

from collections.abc import Iterator, Mapping
from typing import Any

from analysis.errors import StatsError
from pruning.evaluate.benchmarks.harness_results import count, number, part
from pruning.evaluate.benchmarks.record import BenchmarkScore


def evalscope_scores(raw: Mapping[str, Any]) -> tuple[BenchmarkScore, ...]:
    """The scores of a report: of the dataset, and of its subsets where it has several.

    A report gives no standard errors and rounds to four digits. Raises a StatsError where it is not
    of this form or did not end, a ValueError for a number that cannot be.
    """
    dataset = raw.get("dataset_name")
    if not isinstance(dataset, str) or not dataset:
        raise StatsError("its 'dataset_name' is no name")
    if part(raw, "execution_summary").get("incomplete"):
        raise StatsError("it says that the evaluation is incomplete; evaluate again")
    scores = [
        score for metric in _objects(raw, "metrics") for score in _metric_scores(dataset, metric)
    ]
    return tuple(sorted(scores, key=lambda score: (score.task, score.metric)))


def _metric_scores(dataset: str, metric: Mapping[str, Any]) -> Iterator[BenchmarkScore]:
    name = _name(metric)
    is_better = part(metric, "semantics").get("direction") != "lower_is_better"
    value = number(metric.get("score"))
    if value is not None:
        yield BenchmarkScore(
            dataset, name, value, higher_is_better=is_better, num_samples=count(metric.get("num"))
        )
    subsets = [
        subset
        for category in _objects(metric, "categories")
        for subset in _objects(category, "subsets")
        if not subset.get("is_aggregate")
    ]
    for subset in subsets if len(subsets) > 1 else ():
        value = number(subset.get("score"))
        if value is not None and subset.get("name"):
            yield BenchmarkScore(
                f"{dataset}/{subset['name']}",
                name,
                value,
                higher_is_better=is_better,
                num_samples=count(subset.get("num")),
                group=dataset,
            )


def _name(metric: Mapping[str, Any]) -> str:
    identity = part(metric, "identity")
    name = identity.get("name") or metric.get("name")
    if not isinstance(name, str) or not name:
        raise StatsError("a metric has no name")
    aggregation = identity.get("aggregation")
    how = [str(aggregation)] if aggregation not in (None, "mean") else []
    how += [f"{key}={value}" for key, value in sorted(part(identity, "dimensions").items())]
    return ",".join([name, *how])


def _objects(raw: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    found = raw.get(key)
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise StatsError(f"its {key!r} is no list of objects")
    return found
