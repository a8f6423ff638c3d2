"""Benchmark records: one small JSON file per candidate and settings, next to the statistics."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, Self

from analysis.lazy import pd
from analysis.model.moe_model import ModelRef, MoEModel
from pruning.measures.store import Record, RecordStore, readable_records
from pruning.plan.expert_sizes import Routing
from pruning.plan.plan import NEURON_GRANULARITY, PruningPlan, fit_plan, model_ref
from pruning.records.plan_facts import MADE_BY, PlanFacts, made_facts, plan_facts
from pruning.surgery.manifest import Manifest

FULL = "full"
_TOOL: Final = "lm-eval"
# Metrics that are shares of the questions, by the name before "@" and ",", as are those in _acc.
# f1 and exact are not: for SQuAD, lm-evaluation-harness gives percentages.
_SHARES = (
    "acc",
    "acc_norm",
    "acc_bytes",
    "acc_mutual_info",
    "accuracy",
    "averageaccuracy",
    "exact_match",
    "em",
    "pass",
    "pass_at_1",
    "averagepass",
    "mc1",
    "mc2",
)
_ROUNDING = 1e-6


@dataclass(frozen=True, slots=True)
class BenchmarkScore:
    """One score of a benchmark; None where the tool does not say."""

    task: str  # name of the benchmark in its tool
    metric: str  # or `metric,filter`, such as `exact_match,flexible-extract`
    value: float  # shares are fractions from 0 to 1
    stderr: float | None = None  # standard error of `value`
    higher_is_better: bool = True
    num_samples: int | None = None  # questions
    num_fewshot: int | None = None  # examples before each question
    version: str = ""  # of the task in its tool; for local tasks, of their documents
    group: str = ""  # of tasks, such as mmlu

    def __post_init__(self) -> None:
        if not self.task or not self.metric:
            raise ValueError("A benchmark's score names its task and its metric.")
        for number in (self.value, self.stderr):
            if number is not None and not math.isfinite(number):
                raise ValueError(f"The {self.metric} of {self.task} is no finite number.")
        if self.stderr is not None and self.stderr < 0:
            raise ValueError(f"The standard error of {self.metric} of {self.task} is negative.")
        if self.num_samples is not None and self.num_samples < 1:
            raise ValueError(f"{self.task} has {self.num_samples} questions; at least 1 is needed.")
        name = self.metric.partition(",")[0].partition("@")[0].lower()
        is_share = name in _SHARES or name.endswith("_acc")
        if is_share and not -_ROUNDING <= self.value <= 1 + _ROUNDING:
            raise ValueError(
                f"The {self.metric} of {self.task} is {self.value:g}, but a share of questions is "
                "from 0 to 1."
            )


class BenchmarkRecord(Record):
    """The benchmark scores of one candidate: a model, original or pruned.

    The digest covers the candidate, what ran, the tool, the settings (see `benchmark_settings`),
    and how the plan was made, which is shown with the scores. `model` is the original also if an
    export of it ran, so all its candidates share it.
    """

    folder = "benchmarks"
    word = "benchmark"
    command = "benchmark"
    measured = "scores"

    ran: ModelRef  # the original model, in which plans are masked, or an export of it
    candidate: str  # FULL, or the plan in words, see `candidate_label`
    plan_digest: str  # see `RecordOfPlan`; empty if results were imported without a plan
    plan: PlanFacts  # empty if results were imported without a plan
    scores: tuple[BenchmarkScore, ...] = ()  # by task and metric
    source: Literal["lm-eval"]  # the tool
    tool_version: str = ""  # empty if a file does not say

    @property
    def is_full(self) -> bool:
        """Whether this is the original model."""
        return self.candidate == FULL

    def of_task(self, task: str, version: str | None = None) -> tuple[BenchmarkScore, ...]:
        """The scores of a task, of one version or of any."""
        scores = (score for score in self.scores if score.task == task)
        return tuple(score for score in scores if version in (None, score.version))

    def with_scores(
        self, scores: Iterable[BenchmarkScore], tool_version: str, run_facts: Mapping[str, Any]
    ) -> Self:
        """The record with these scores, and its own of other tasks."""
        new = tuple(scores)
        tasks = {score.task for score in new}
        together = (*(score for score in self.scores if score.task not in tasks), *new)
        ordered = tuple(sorted(together, key=lambda score: (score.task, score.metric)))
        return self.finished(run_facts, scores=ordered, tool_version=tool_version)


class BenchmarkCandidate(NamedTuple):
    """A model to benchmark, with the fields of `BenchmarkRecord`."""

    model: ModelRef
    ran: ModelRef
    candidate: str
    plan_digest: str
    plan: PlanFacts


def candidate_label(facts: PlanFacts) -> str:
    """A plan in words: criterion, corpora, sparsity, what is unusual about it, its repair."""
    removed = facts.removed
    if removed == 0:
        return FULL
    words = [
        facts.criterion or "plan",
        "+".join(facts.corpora),
        facts.sparsity if removed is None else f"{removed:.0%}",
        facts.schedule if facts.schedule not in ("", "uniform") else "",
        "neurons" if facts.granularity == NEURON_GRANULARITY else "",
    ]
    return ", ".join(filter(None, words)) + facts.variant_words


def benchmark_settings(
    *,
    limit: float | None = None,
    num_fewshot: int | None = None,
    dtype: str = "",
    chat_template: bool = False,
    template_args: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, Any]:
    """The settings that change scores, see `HarnessSettings`; `dtype` is empty if unknown."""
    if limit is not None and limit >= 1:
        limit = int(limit)  # the harness writes 100.0 for 100
    how: dict[str, Any] = {"limit": limit, "num_fewshot": num_fewshot}
    how |= {"dtype": dtype, "chat_template": chat_template}
    return how | ({"template_args": dict(template_args)} if template_args else {})


def way_of(settings: Mapping[str, Any]) -> str:
    """How a benchmark was run, in words: the tool, and its unusual settings."""
    words: list[str] = [_TOOL]
    limit, shots = settings.get("limit"), settings.get("num_fewshot")
    if limit:
        words.append(f"{limit:.0%} of the questions" if limit < 1 else f"{limit:g} questions")
    if shots is not None:
        words.append(f"{shots} examples")
    words += ["as a conversation"] if settings.get("chat_template") else []
    arguments = settings.get("template_args")
    if isinstance(arguments, Mapping):
        words += [f"{name}={json.dumps(value)}" for name, value in arguments.items()]
    words += [str(settings["dtype"])] if settings.get("dtype") else []
    return ", ".join(words)


def new_benchmark(candidate: BenchmarkCandidate, settings: Mapping[str, Any]) -> BenchmarkRecord:
    """A record without scores."""
    # Facts are missing if results were imported without a plan.
    made_by = candidate.plan.model_dump(include=set(MADE_BY), exclude_unset=True)
    deciding = {
        "model": candidate.model.identity,
        "ran": candidate.ran.identity,
        "candidate": candidate.candidate,
        "plan": candidate.plan_digest,
        "tool": _TOOL,
        "settings": dict(settings),
        "made": dict.fromkeys(MADE_BY) | made_by,
    }
    return BenchmarkRecord.begun(
        (candidate.ran.name, candidate.candidate.replace(", ", "-").rstrip("%"), _TOOL),
        deciding,
        **candidate._asdict(),
        source=_TOOL,
        settings=dict(settings),
    )


class BenchmarkStore(RecordStore[BenchmarkRecord]):
    """Benchmarks of one or more statistics directories; new ones go to the first."""

    kind = BenchmarkRecord


def is_benchmarked(store: BenchmarkStore, identity: str, plan_digest: str) -> bool:
    """Whether any score of a plan of a model is recorded; unreadable files are left out."""
    records, _ = readable_records(store, identity)
    return any(record.plan_digest == plan_digest and record.scores for record in records)


def candidate_of_plan(
    model: MoEModel, plan: PruningPlan, routing: Routing | None = None
) -> BenchmarkCandidate:
    """A model with a plan masked in it; the model itself if the plan keeps everything."""
    fitted = fit_plan(plan, model)
    facts = plan_facts(fitted, model, routing)
    ref = model_ref(model)
    return BenchmarkCandidate(ref, ref, candidate_label(facts), fitted.digest, facts)


def candidate_of_export(
    model: MoEModel, manifest: Manifest, source: MoEModel | None = None, *, routing: Routing | None
) -> BenchmarkCandidate:
    """An export, which is `model` itself.

    Without its source, the facts are those of the manifest, which lacks sizes before and neurons.
    """
    plan = manifest.plan
    if source is None:
        after = sum(map(len, plan.kept.values()))
        count = plan.provenance.budget.get("removed")
        removed = None
        if isinstance(count, int) and not plan.kept_neurons:
            removed = count / (after + count)
        changes = {"granularity": plan.granularity, "experts_after": after, "removed": removed}
        changes["bytes_after"] = model.checkpoint.nbytes
        facts = made_facts(plan).model_copy(update=changes)
    else:
        plan = fit_plan(plan, source)
        facts = plan_facts(plan, source, routing)
    full = ModelRef(manifest.source.name, manifest.source.identity)
    return BenchmarkCandidate(full, model_ref(model), candidate_label(facts), plan.digest, facts)


TABLE_COLUMNS = (
    "record",
    "model",
    "ran",
    "candidate",
    "plan",
    "criterion",
    "calibrated_on",
    "repaired_on",
    "repair_tokens",
    "schedule",
    "granularity",
    "sparsity",
    "removed",
    "bytes",
    "task",
    "group",
    "metric",
    "value",
    "stderr",
    "higher_is_better",
    "num_samples",
    "full",
    "full_stderr",
    "source",
    "created_at",
)
_NUMBERS = ("removed", "bytes", "value", "stderr", "num_samples", "full", "full_stderr")


def _comparable(record: BenchmarkRecord, score: BenchmarkScore) -> str:
    """A key that comparable scores share: model, settings, task and its version, counts."""
    same = (record.model.identity, dict(record.settings))
    what = (score.task, score.metric, score.version, score.num_samples, score.num_fewshot)
    return json.dumps([*same, *what], sort_keys=True)


def benchmark_table(records: Iterable[BenchmarkRecord]) -> pd.DataFrame:
    """Table of TABLE_COLUMNS, one row per score of a record.

    `record` is the record's id, `model` and `ran` the names of the original model and of what ran,
    `plan` the plan's digest; for its other columns see `PlanFacts.columns`, missing if results were
    imported without a plan. `full` and `full_stderr` are the original model's comparable score.
    """
    all_records = list(records)
    in_time = sorted(all_records, key=lambda record: record.created_at)
    full_scores = {
        _comparable(record, score): score
        for record in in_time
        if record.is_full
        for score in record.scores
    }
    rows = []
    for record in all_records:
        described = {
            "record": record.record_id,
            "model": record.model.name,
            "ran": record.ran.name,
            "candidate": record.candidate,
            "plan": record.plan_digest,
            **record.plan.columns,
            "source": record.source,
            "created_at": record.created_at,
        }
        for score in record.scores:
            full = full_scores.get(_comparable(record, score))
            full_columns = {"full": full.value, "full_stderr": full.stderr} if full else {}
            rows.append({**described, **asdict(score), **full_columns})
    table = pd.DataFrame(rows, columns=list(TABLE_COLUMNS))
    return table.astype(dict.fromkeys(_NUMBERS, "float64") | {"higher_is_better": "bool"})
