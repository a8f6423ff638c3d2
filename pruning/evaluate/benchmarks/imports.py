"""Results of other tools, imported from their files.

Reports of EvalScope, one file a dataset, are read in both forms: a metric has a `name` (versions
0.15 to 1.x), or an `identity` and `semantics` that say its direction (schema_version 2, 1.11).
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from analysis.errors import StatsError
from pruning.evaluate.benchmarks.harness_results import (
    count,
    harness_scores,
    harness_settings,
    number,
    part,
)
from pruning.evaluate.benchmarks.record import BenchmarkScore, BenchmarkSource, settings_of

# A file of lm-evaluation-harness with all of MMLU is 0.3 MB; answers are in files of their own.
MOST_BYTES = 16 << 20
_KNOWN = (
    "the results file of lm-evaluation-harness 0.4 (results_*.json), or a report of EvalScope "
    "(reports/<model>/<data set>.json)"
)


@dataclass(frozen=True, slots=True)
class ImportedResults:
    """What a file of results says."""

    source: BenchmarkSource  # the tool that wrote it
    tool_version: str  # its version; empty where the file does not say
    scores: tuple[BenchmarkScore, ...]  # by task and metric; at least one
    settings: Mapping[str, Any]  # see `settings_of`
    made: Mapping[str, Any]  # `created_at` where the file says when


def read_results(path: Path) -> ImportedResults:
    """The results in a file."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise StatsError(
                f"{path.name} is larger than {MOST_BYTES >> 20} MiB; give the file of results, "
                "not that of the samples."
            )
        raw = json.loads(path.read_bytes())
    except OSError as error:
        raise StatsError(f"{path} cannot be read: {error.strerror or error}.") from error
    except (ValueError, RecursionError) as error:
        raise StatsError(f"{path.name} is no JSON file; give {_KNOWN}.") from error
    return parse_results(raw, path.name)


def parse_results(raw: object, where: str) -> ImportedResults:
    """The results in parsed JSON; `where` is for messages."""
    try:
        found = _parsed(raw)
    except StatsError as error:
        raise StatsError(f"{where} cannot be read: {error}; give {_KNOWN}.") from error
    except ValueError as error:
        raise StatsError(f"{where} holds what cannot be: {error}") from error
    if not found.scores:
        raise StatsError(f"{where} has no number for any task; give {_KNOWN}.")
    once = {(score.task, score.metric): score for score in found.scores}
    return replace(found, scores=tuple(once.values()))


def _parsed(raw: object) -> ImportedResults:
    if isinstance(raw, dict) and "results" in raw:
        version = raw.get("lm_eval_version")
        version = version if isinstance(version, str) else ""
        made = _date(raw.get("date"))
        scores = harness_scores(raw)
        return ImportedResults("lm-eval", version, scores, harness_settings(raw), made)
    if isinstance(raw, dict) and "metrics" in raw and "dataset_name" in raw:
        return ImportedResults("evalscope", "", evalscope_scores(raw), settings_of(), {})
    raise StatsError("it is of no form that is known")


def _date(seconds: object) -> dict[str, str]:
    since = number(seconds)
    if since is None:
        return {}
    try:
        when = datetime.fromtimestamp(since, UTC)
    except (ValueError, OverflowError, OSError):
        return {}
    return {"created_at": when.isoformat(timespec="milliseconds")}


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
