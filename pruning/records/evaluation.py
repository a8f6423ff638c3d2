"""Evaluations: the measures of one plan on one set of samples, and their tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, Self

from pydantic import Field, model_validator

from analysis.errors import StatsError, unknown_name
from analysis.lazy import pd
from pruning.measurements.block import ORIGINAL
from pruning.measurements.records import MeasuredRecord, MeasuredStore
from pruning.measurements.table import PlanSums
from pruning.measures.result import (
    MEASURES,
    OF_FULL_MODEL,
    RIGHT,
    LazyMetrics,
    Measure,
    Metric,
    SampleCount,
    SampleSums,
    summarise,
)
from pruning.measures.right_answers import RightAnswers
from pruning.measures.sample_losses import SampleLosses
from pruning.measures.store import (
    SCHEMA_VERSION,
    SEAL,
)
from pruning.plan.shown import DisplayMixin, Facts
from pruning.records.plan_facts import PlanRecord

TABLE_COLUMNS = (
    "evaluation",
    "model",
    "plan",
    "criterion",
    "calibrated_on",
    "repaired_on",
    "repair_tokens",
    "bits",
    "top_k",
    "schedule",
    "granularity",
    "sparsity",
    "removed",
    "bytes",
    "active_params",
    "expert_flops",
    "corpus",
    "measure",
    "mean",
    "pooled",
    "low",
    "high",
    "full",
    "num_samples",
    "num_documents",
    "num_tokens",
    "dtype",
    "created_at",
)


class EvaluationRecord(DisplayMixin, MeasuredRecord, PlanRecord):
    """The measures of one plan on one set of samples; `result.json`.

    Its settings are `dtype` and `seed` (of bootstrap and draws).
    """

    folder = "evaluations"
    word = "evaluation"
    command = "evaluate"
    measured = "measures"
    optional = frozenset({"right_answers"})

    record_id: str = Field(alias="evaluation_id")
    measures: tuple[str, ...] = ()  # that were asked for
    right_answers: RightAnswers | None = None  # None if no answers were checked

    @model_validator(mode="after")
    def _can_be(self) -> Self:
        for name in self.measures:
            if name not in MEASURES:
                raise ValueError(unknown_name("measure", name, MEASURES))
        if (self.right_answers is None) != (RIGHT not in self.measures):
            raise ValueError(f"it has {RIGHT} without the answers, or answers without {RIGHT}")
        return self

    @property
    def plans(self) -> tuple[str, ...]:
        """The plan, and the original model."""
        return self.plan_digest, ORIGINAL

    @property
    def lacking(self) -> str:
        """See `MeasuredRecord`."""
        lacking = self.lacking_of(name for name in self.measures if name != RIGHT)
        return lacking[0] if lacking else "" if self._own else "its samples"

    def lacking_of(self, measures: Iterable[str]) -> tuple[str, ...]:
        """Those of these measures without numbers; a loss is told beside that of the original."""
        return tuple(
            name
            for name in measures
            if MEASURES[name].row not in self._own
            or (name in OF_FULL_MODEL and MEASURES[name].row not in self._original)
        )

    def with_measures(self, measures: Iterable[str]) -> Self:
        """The record that was asked for these measures too, where their numbers are known."""
        known = {name for name in measures if name != RIGHT} - {*self.lacking_of(measures)}
        asked = tuple(name for name in MEASURES if name in {*self.measures, *known})
        if asked == self.measures:
            return self
        return self.with_known().model_copy(update={"measures": asked})

    @property
    def _own(self) -> Mapping[str, SampleSums]:
        """The sums of the plan, by measure."""
        known = self.numbers.get(self.plan_digest)
        return known.sums if known else {}

    @property
    def _original(self) -> Mapping[str, SampleSums]:
        known = self.numbers.get(ORIGINAL)
        return known.sums if known else {}

    @property
    def num_samples(self) -> int:
        """How many samples it is over; 0 before it was measured."""
        known = self.numbers.get(self.plan_digest)
        return len(known.samples) if known else 0

    @property
    def num_tokens(self) -> int:
        """Scored positions of all samples."""
        at_positions = (sum_ for name, sum_ in self._own.items() if MEASURES[name].sums)
        sums = next(at_positions, None)
        return int(sums.counts.sum()) if sums else 0

    @property
    def metrics(self) -> Mapping[str, Metric]:
        """By measure, those that were asked for and are known."""
        return self._metrics(MEASURES, self._own)

    @property
    def full(self) -> Mapping[str, Metric]:
        """Of the original model: `nll` and `ppl` on the same samples, `right` on its questions."""
        return self._metrics(OF_FULL_MODEL, self._original)

    def _metrics(
        self, registry: Mapping[str, Measure], sums: Mapping[str, SampleSums]
    ) -> Mapping[str, Metric]:
        made: dict[str, Callable[[], Metric]] = {
            name: partial(
                summarise,
                sums[MEASURES[name].row],
                is_log=MEASURES[name].is_log,
                seed=self.settings["seed"],
            )
            for name in self.measures
            if name in registry and MEASURES[name].row in sums
        }
        if answers := self.right_answers:
            own = registry is MEASURES
            made[RIGHT] = lambda: answers.metric if own else answers.full_metric
        return LazyMetrics(made)

    @property
    def samples(self) -> SampleLosses | None:
        """The losses by sample; None if the loss was not measured."""
        return SampleLosses.of(self._own, self._original)

    def mean(self, measure: str) -> float:
        """The mean of a measure over the samples, as in `metrics`, which have intervals too."""
        return float(self._own[MEASURES[measure].row].means.mean())

    def full_mean(self, measure: str) -> float:
        """The same of the original model."""
        return float(self._original[MEASURES[measure].row].means.mean())

    @property
    def kept(self) -> tuple[int, ...]:
        """Experts, or of a plan of neurons these, that stay in each layer."""
        return self.numbers[self.plan_digest].kept

    @property
    def count(self) -> SampleCount:
        """How many samples of how many documents."""
        return SampleCount(self.num_samples, self.corpus["num_documents"])

    def count_of(self, measure: str) -> SampleCount:
        """How many samples of how many documents a measure is over; of answers, the questions."""
        answers = self.right_answers
        return answers.count if answers and measure == RIGHT else self.count

    @property
    def shown(self) -> Facts:
        """The facts that a console or a notebook shows."""
        plan = self.plan
        losses = [metrics["nll"].mean for metrics in (self.metrics, self.full) if "nll" in metrics]
        increase = f"{losses[0] - losses[1]:+z.4f}" if len(losses) == 2 else "not measured"
        return {
            "model": self.model.name,
            "plan": (plan.criterion or "none") + plan.variant_words,
            "asked": plan.sparsity or "none",
            "corpus": self.corpus["name"],
            "samples": self.count.words,
            "tokens": self.num_tokens,
            **{name: f"{metric.mean:.4f}" for name, metric in self.metrics.items()},
            **({RIGHT: self.right_answers.words} if self.right_answers else {}),
            "loss_increase": increase,
        }

    def _facts(self) -> dict[str, Any]:
        """With the numbers, and without the names of measures, which they have."""
        facts = self._stored
        answers = facts.pop("right_answers", None)
        for name in ("schema_version", "measures", SEAL):
            del facts[name]
        losses = self.samples
        return {
            **facts,
            "num_samples": self.num_samples,
            "num_tokens": self.num_tokens,
            "metrics": {name: asdict(metric) for name, metric in self.metrics.items()},
            "full": {name: asdict(metric) for name, metric in self.full.items()},
            **({"samples": losses.model_dump()} if losses else {}),
            **({"right_answers": answers} if answers else {}),
        }

    def with_results(
        self,
        plans: Mapping[str, PlanSums],
        measures: Iterable[str],
        run_facts: Mapping[str, Any],
    ) -> Self:
        """The record with sums of the plan and of the original model added."""
        record = self.finished(run_facts).with_numbers(plans).with_measures(measures)
        for name, metric in record.metrics.items():
            if not all(math.isfinite(value) for value in (metric.mean, metric.pooled)):
                raise StatsError(
                    f"The measure {name} of {self.record_id} is no finite number; the model "
                    "gives infinite or undefined logits, perhaps for lack of range: try --dtype "
                    "bfloat16 or float32."
                )
        return record

    def with_right_answers(self, answers: RightAnswers, run_facts: Mapping[str, Any]) -> Self:
        """The record with answers added, in the place of earlier ones."""
        measures = tuple(name for name in MEASURES if name in {*self.measures, RIGHT})
        return self.finished(run_facts, right_answers=answers, measures=measures)


class EvaluationStore(MeasuredStore[EvaluationRecord]):
    """Evaluations of one or more statistics directories; new ones go to the first."""

    kind = EvaluationRecord


def evaluation_table(records: Iterable[EvaluationRecord]) -> pd.DataFrame:
    """Table of TABLE_COLUMNS, one row per measure of a record.

    `plan` is the plan's digest, for its other columns see `PlanFacts.columns`; `full` is the value
    of the original model, missing for measures that compare both models.
    """
    rows = [
        {
            "evaluation": record.record_id,
            "model": record.model.name,
            "plan": record.plan_digest,
            **columns,
            "corpus": record.corpus["name"],
            "measure": name,
            "mean": metric.mean,
            "pooled": metric.pooled,
            "low": metric.low,
            "high": metric.high,
            "full": record.full[name].mean if name in record.full else None,
            "num_samples": record.count_of(name).samples,
            "num_documents": record.count_of(name).documents,
            "num_tokens": record.num_tokens,
            "dtype": record.settings["dtype"],
            "created_at": record.created_at,
        }
        for record in records
        for columns in [record.plan.columns]
        for name, metric in record.metrics.items()
    ]
    table = pd.DataFrame(rows, columns=list(TABLE_COLUMNS))
    floats = dict.fromkeys(("removed", "mean", "pooled", "low", "high", "full"), "float64")
    return table.astype({**floats, "num_documents": "Int64"})


def result_json(records: Sequence[EvaluationRecord]) -> dict[str, Any]:
    """The content of result.json: one evaluation, or several as `evaluations`."""
    if len(records) == 1:
        return records[0].to_dict()
    content = {"schema_version": SCHEMA_VERSION}
    return content | {"evaluations": [record.to_dict() for record in records]}
