"""Scores from results files of lm-evaluation-harness 0.4.x, which hold all tasks of a run."""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from analysis.errors import StatsError
from pruning.benchmarks.record import BenchmarkScore, benchmark_settings

_STDERR = "_stderr"
# For files before 0.4.4, which lack `higher_is_better`.
_LOWER_IS_BETTER = (
    "perplexity",
    "word_perplexity",
    "byte_perplexity",
    "bits_per_byte",
    "brier_score",
    "ter",
    "bypass",
)


def number(value: object) -> float | None:
    """A finite number, or None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        finite = float(value)
    except OverflowError:  # a whole number of more digits than a float can have
        return None
    return finite if math.isfinite(finite) else None


def part(raw: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """The object at a key; empty if there is none."""
    if (entry := raw.get(key)) is None:
        return {}
    if not isinstance(entry, dict):
        raise StatsError(f"its {key!r} is no object")
    return entry


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
    sample_counts = part(part(raw, "n-samples"), task)
    version = part(raw, "versions").get(task)
    shots = part(raw, "n-shot").get(task)
    for key, raw_value in values.items():
        metric, comma, way = key.partition(",")
        value = number(raw_value)
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
            num_samples=count(sample_counts.get("effective")) or count(values.get("sample_len")),
            num_fewshot=shots if count(shots) or shots == 0 else None,
            version="" if version is None else str(version),
            group=group,
        )


def harness_settings(raw: Mapping[str, Any]) -> dict[str, Any]:
    """`benchmark_settings` a results file; the number of examples is stored with each score."""
    config = part(raw, "config")
    arguments = config.get("model_args")
    if isinstance(arguments, str):
        arguments = dict(pair.strip().partition("=")[::2] for pair in arguments.split(","))
    requested_dtype = arguments.get("dtype") if isinstance(arguments, Mapping) else None
    dtype = config.get("model_dtype") or requested_dtype
    # "auto" is the checkpoint's own, which is not in the file.
    return benchmark_settings(
        limit=number(config.get("limit")),
        dtype=dtype.removeprefix("torch.") if isinstance(dtype, str) and dtype != "auto" else "",
        chat_template=bool(raw.get("chat_template")),
    )


# lm-evaluation-harness writes 0.3 MB for all of MMLU, and answers to other files.
MOST_BYTES = 16 << 20
_KNOWN = "the results file of lm-evaluation-harness 0.4 (results_*.json)"


@dataclass(frozen=True, slots=True)
class ImportedResults:
    """The content of a results file."""

    tool_version: str  # empty if the file does not say
    scores: tuple[BenchmarkScore, ...]  # by task and metric; at least one
    settings: Mapping[str, Any]  # see `benchmark_settings`
    run_facts: Mapping[str, Any]  # `created_at`, if the file says


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
        results = _parse(raw)
    except StatsError as error:
        raise StatsError(f"{where} cannot be read: {error}; give {_KNOWN}.") from error
    except ValueError as error:
        raise StatsError(f"{where} has an impossible value: {error}") from error
    if not results.scores:
        raise StatsError(f"{where} has no number for any task; give {_KNOWN}.")
    once = {(score.task, score.metric): score for score in results.scores}
    return replace(results, scores=tuple(once.values()))


def _parse(raw: object) -> ImportedResults:
    if not (isinstance(raw, dict) and "results" in raw):
        raise StatsError("its format is unknown")
    version = raw.get("lm_eval_version")
    return ImportedResults(
        tool_version=version if isinstance(version, str) else "",
        scores=harness_scores(raw),
        settings=harness_settings(raw),
        run_facts=_date(raw.get("date")),
    )


def _date(seconds: object) -> dict[str, str]:
    since = number(seconds)
    if since is None:
        return {}
    try:
        when = datetime.fromtimestamp(since, UTC)
    except (ValueError, OverflowError, OSError):
        return {}
    return {"created_at": when.isoformat(timespec="milliseconds")}
