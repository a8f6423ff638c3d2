"""Scores from result files of other tools.

lm-evaluation-harness 0.4.x writes one file with all tasks. EvalScope writes one report per dataset,
read in both of its forms: a metric has a `name` (versions 0.15 to 1.x), or an `identity` and
`semantics` that state its direction (schema_version 2, since 1.11).
"""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from analysis.errors import StatsError
from pruning.evaluate.benchmarks.record import BenchmarkScore, BenchmarkSource, settings_of

_STDERR = "_stderr"
# For files before 0.4.4, which lack `higher_is_better`.
_LOWER_IS_BETTER = (
    *("perplexity", "word_perplexity", "byte_perplexity", "bits_per_byte"),
    *("brier_score", "ter", "bypass"),
)


def number(value: object) -> float | None:
    """A finite number, or None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:  # a whole number of more digits than a float can have
        return None
    return found if math.isfinite(found) else None


def part(raw: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """The object at a key; empty if there is none."""
    if (found := raw.get(key)) is None:
        return {}
    if not isinstance(found, dict):
        raise StatsError(f"its {key!r} is no object")
    return found


def count(value: object) -> int | None:
    """A positive integer, or None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def harness_scores(raw: Mapping[str, Any]) -> tuple[BenchmarkScore, ...]:
    """The scores of a results file of the harness, of tasks and groups, by task and metric.

    Values that are no finite numbers, such as `N/A`, are left out. A StatsError if the file is not
    of this form, a ValueError for an impossible number.
    """
    results = {**part(raw, "results"), **part(raw, "groups")}
    groups = {
        str(task): str(group)
        for group, tasks in part(raw, "group_subtasks").items()
        if isinstance(tasks, list)
        for task in tasks
        if group in results
    }
    scores = [
        score
        for task, values in results.items()
        for score in _task_scores(raw, task, values, groups.get(task, ""))
    ]
    return tuple(sorted(scores, key=lambda score: (score.task, score.metric)))


def _task_scores(
    raw: Mapping[str, Any], task: str, values: object, group: str
) -> Iterator[BenchmarkScore]:
    if not isinstance(values, dict):
        raise StatsError(f"the result of {task!r} is no object")
    directions = part(part(raw, "higher_is_better"), task)
    asked = part(part(raw, "n-samples"), task)
    version = part(raw, "versions").get(task)
    shots = part(raw, "n-shot").get(task)
    for key, given in values.items():
        metric, comma, way = key.partition(",")
        value = number(given)
        if not task or not metric or not comma or metric.endswith(_STDERR) or value is None:
            continue
        direction = directions.get(metric)
        yield BenchmarkScore(
            task=task,
            metric=metric if way == "none" else f"{metric},{way}",
            value=value,
            stderr=number(values.get(f"{metric}{_STDERR},{way}")),
            higher_is_better=metric not in _LOWER_IS_BETTER
            if direction is None
            else bool(direction),
            num_samples=count(asked.get("effective")) or count(values.get("sample_len")),
            num_fewshot=shots if count(shots) or shots == 0 else None,
            version="" if version is None else str(version),
            group=group,
        )


def harness_settings(raw: Mapping[str, Any]) -> dict[str, Any]:
    """`settings_of` a results file; the number of examples is stored with each score."""
    config = part(raw, "config")
    return settings_of(
        limit=number(config.get("limit")),
        dtype=_dtype(config),
        chat_template=bool(raw.get("chat_template")),
    )


def _dtype(config: Mapping[str, Any]) -> str:
    """The dtype of the model, else the requested one; empty if unknown."""
    asked = config.get("model_args")
    if isinstance(asked, str):
        asked = dict(pair.strip().partition("=")[::2] for pair in asked.split(","))
    given = asked.get("dtype") if isinstance(asked, Mapping) else None
    found = config.get("model_dtype") or given
    # "auto" is the checkpoint's own, which is not in the file.
    return found.removeprefix("torch.") if isinstance(found, str) and found != "auto" else ""


# lm-evaluation-harness writes 0.3 MB for all of MMLU, and answers to other files.
MOST_BYTES = 16 << 20
_KNOWN = (
    "the results file of lm-evaluation-harness 0.4 (results_*.json), or a report of EvalScope "
    "(reports/<model>/<data set>.json)"
)


@dataclass(frozen=True, slots=True)
class ImportedResults:
    """The content of a results file."""

    source: BenchmarkSource  # the tool that wrote it
    tool_version: str  # empty if the file does not say
    scores: tuple[BenchmarkScore, ...]  # by task and metric; at least one
    settings: Mapping[str, Any]  # see `settings_of`
    made: Mapping[str, Any]  # `created_at`, if the file says


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
        raise StatsError(f"{where} has an impossible value: {error}") from error
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
    raise StatsError("its format is unknown")


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
    """The scores of a report of EvalScope: of the dataset, and of its subsets if it has several.

    A report gives no standard errors and rounds to four digits. A StatsError if it is not of this
    form or incomplete, a ValueError for an impossible number.
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
