"""Scores of benchmark records as a table, each beside the full model's under the same settings."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict

from analysis.lazy import pd
from pruning.evaluate.benchmarks.record import BenchmarkRecord, BenchmarkScore

TABLE_COLUMNS = (
    *("record", "model", "ran", "candidate", "plan", "criterion", "calibrated_on", "schedule"),
    *("granularity", "sparsity", "removed", "bytes"),
    *("task", "group", "metric", "value", "stderr", "higher_is_better", "num_samples"),
    *("full", "full_stderr", "source", "created_at"),
)
_NUMBERS = ("removed", "bytes", "value", "stderr", "num_samples", "full", "full_stderr")


def _comparable(record: BenchmarkRecord, score: BenchmarkScore) -> str:
    """What two scores must share: model, tool, settings, task in the same version, counts."""
    same = (record.model.identity, record.source, dict(record.settings))
    what = (score.task, score.metric, score.version, score.num_samples, score.num_fewshot)
    return json.dumps([*same, *what], sort_keys=True)


def benchmark_table(records: Iterable[BenchmarkRecord]) -> pd.DataFrame:
    """Table of TABLE_COLUMNS, one row a score of a record.

    `record` is the record's id, `model` and `ran` the names of the full model and of what ran,
    `plan` the plan's digest; for its other columns see `PlanFacts.columns`: missing where results
    were imported without a plan. `full` and `full_stderr` are the full model's value of the same
    task under the same settings, missing where not known.
    """
    known = list(records)
    in_time = sorted(known, key=lambda record: record.created_at)
    full_scores = {
        _comparable(record, score): score
        for record in in_time
        if record.is_full
        for score in record.scores
    }
    rows = []
    for record in known:
        described = {
            **{"record": record.record_id, "model": record.model.name, "ran": record.ran.name},
            **{"candidate": record.candidate, "plan": record.plan_digest, **record.plan.columns},
            **{"source": record.source, "created_at": record.created_at},
        }
        for score in record.scores:
            full = full_scores.get(_comparable(record, score))
            beside = {"full": full.value, "full_stderr": full.stderr} if full else {}
            rows.append({**described, **asdict(score), **beside})
    table = pd.DataFrame(rows, columns=list(TABLE_COLUMNS))
    return table.astype(dict.fromkeys(_NUMBERS, "float64") | {"higher_is_better": "bool"})
