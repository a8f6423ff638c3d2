"""Results of lm-evaluation-harness, 0.4.x: its table of tasks and metrics -> scores."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from analysis.errors import StatsError
from pruning.evaluate.benchmarks.record import BenchmarkScore, settings_of

_STDERR = "_stderr"
# Where a file does not say: results had no `higher_is_better` before 0.4.4.
_LOWER_IS_BETTER = (
    *("perplexity", "word_perplexity", "byte_perplexity", "bits_per_byte"),
    *("brier_score", "ter", "bypass"),
)


def number(value: object) -> float | None:
    """A finite number, or None for whatever else stands in its place."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:  # a whole number of more digits than a float can have
        return None
    return found if math.isfinite(found) else None


def part(raw: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """The object below a key; empty where there is none."""
    found = raw.get(key)
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise StatsError(f"its {key!r} is no object")
    return found


def count(value: object) -> int | None:
    """A whole number from 1, or None for whatever else stands in its place."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def harness_scores(raw: Mapping[str, Any]) -> tuple[BenchmarkScore, ...]:
    """The scores of a results file, by task and metric; of groups as of their tasks.

    Values that are no finite numbers, such as texts and `N/A`, are left out. Raises a StatsError
    where the file is not of this form, a ValueError for a number that cannot be.
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
    """See `settings_of`; what a results file says of itself.

    The number of examples is kept with each score, since every task may have its own.
    """
    config = part(raw, "config")
    return settings_of(
        limit=number(config.get("limit")),
        dtype=_dtype(config),
        chat_template=bool(raw.get("chat_template")),
    )


def _dtype(config: Mapping[str, Any]) -> str:
    """The dtype that the model had, else the one that was asked for; empty if unknown."""
    asked = config.get("model_args")
    if isinstance(asked, str):
        asked = dict(pair.strip().partition("=")[::2] for pair in asked.split(","))
    given = asked.get("dtype") if isinstance(asked, Mapping) else None
    found = config.get("model_dtype") or given
    # "auto" is the checkpoint's own, which a file does not say.
    return found.removeprefix("torch.") if isinstance(found, str) and found != "auto" else ""
