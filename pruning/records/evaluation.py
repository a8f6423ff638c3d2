"""Records of plans, one small JSON file each: evaluations, and answers to a prompt."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from analysis.criteria.base import Granularity
from analysis.errors import StatsError
from analysis.lazy import pd
from analysis.model.moe_model import MoEModel
from pruning.measures.result import (
    RIGHT,
    Evaluation,
    Metric,
    SampleCount,
    check_metrics,
)
from pruning.measures.right_answers import RightAnswers
from pruning.measures.sample_losses import SampleLosses
from pruning.measures.store import (
    SCHEMA_VERSION,
    Count,
    Record,
    RecordPart,
    RecordStore,
    RunFacts,
    SampleFacts,
)
from pruning.plan.active import Routing
from pruning.plan.bit_sizes import fewer_bits
from pruning.plan.plan import NEURON_GRANULARITY, PruningPlan, model_ref
from pruning.plan.repair_reference import variant_words
from pruning.plan.shown import DisplayMixin, Facts
from pruning.plan.sizes import PARAMS, ModelPart, size_report
from pruning.spec.spec import PlanSpec

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
# The values of `variant_words`.
VARIANT_COLUMNS = ("repaired_on", "calibrated_on", "bits", "top_k", "repair_tokens")
# How a plan was made: equal plans made differently have separate records. Runs are not part of it:
# repeated with more groups they have other ids and equal numbers.
MADE_BY = ("criterion", "gate", "corpora", "schedule", "sparsity")


class PlanFacts(RecordPart):
    """How a plan was made, see `Provenance`, and what it leaves, as far as known."""

    criterion: str = ""
    gate: str = ""
    corpora: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()
    schedule: str = ""
    sparsity: str = ""
    spec: Mapping[str, Any] = {}  # `PlanSpec.to_json`; empty for plans that are made otherwise
    repair: str = ""  # id of the repair; empty for a plan without one
    repaired_on: tuple[str, ...] = ()  # corpora that it was fitted on
    repair_tokens: Count = 0  # of these together; 0 without a repair
    # The format in which the experts' weights were simulated; empty: as they are.
    bits: Literal["", "8", "6", "5", "4", "mxfp4", "3", "2"] = ""
    top_k: Count = 0  # experts per token, if fewer than the model's own; else 0
    granularity: Granularity | Literal[""] = ""
    experts_before: Count | None = None  # routed experts of all layers
    experts_after: Count | None = None
    removed: Annotated[float, Field(ge=0, le=1)] | None = (
        None  # fraction of the routed experts' weights
    )
    bytes_before: Count | None = None  # of all weights of the checkpoint
    bytes_after: Count | None = None
    # Format -> bytes with the experts in it, for each that makes the checkpoint smaller; of plans
    # of neurons in their own bits, whose rows a share does not tell: each has groups of its own.
    bytes_in_bits: Mapping[str, Count] = {}
    active_before: Count | None = None  # parameters that a token uses
    active_after: Count | None = None
    flops_before: Count | None = None  # of a token in routed experts
    flops_after: Count | None = None
    measured: bool | None = None  # whether `active` and `flops` know how often experts are chosen

    @property
    def asked(self) -> PlanSpec | None:
        """What was asked of the plan; None if it was made otherwise, or by an earlier version."""
        return PlanSpec.model_validate(self.spec) if self.spec else None

    @property
    def repair_corpora(self) -> tuple[str, ...]:
        """Corpora that the repair was fitted on; empty only without a repair."""
        return self.repaired_on or (("unknown",) if self.repair else ())

    @property
    def variant_words(self) -> str:
        """What follows the plan's name; see `variant_words`."""
        repaired_on, corpora = "+".join(self.repair_corpora), "+".join(self.corpora)
        return variant_words(repaired_on, corpora, self.bits, self.top_k, self.repair_tokens)

    @property
    def is_plain(self) -> bool:
        """Whether it only removes: weights have their own bits, and as many experts are chosen."""
        return not (self.bits or self.top_k)

    @property
    def columns(self) -> dict[str, Any]:
        """Columns of tables of records; `sparsity` as asked, `removed` and sizes as they are."""
        return {
            **self.model_dump(include={"criterion", "schedule", "granularity", "sparsity"}),
            "calibrated_on": "+".join(self.corpora),
            "repaired_on": "+".join(self.repair_corpora),
            "repair_tokens": self.repair_tokens,
            "bits": self.bits,
            "top_k": self.top_k,
            "removed": self.removed,
            "bytes": self.bytes_after,
            "active_params": self.active_after,
            "expert_flops": self.flops_after,
        }


def _check_complete(facts: PlanFacts) -> PlanFacts:
    unset = sorted(set(MADE_BY) - facts.model_fields_set)
    if missing := [name for name, value in facts if value is None] or unset:
        raise ValueError(f"it lacks {', '.join(missing)}")
    return facts


AllPlanFacts = Annotated[PlanFacts, AfterValidator(_check_complete)]


class RecordOfPlan(Record):
    """A record of one plan."""

    plan_digest: str  # see `PruningPlan.digest`; the original model is the plan that keeps all
    plan: PlanFacts

    @classmethod
    def begun_with(
        cls,
        model: MoEModel,
        digest: str,
        words: Iterable[str],
        deciding: Mapping[str, Any],
        **fields: Any,
    ) -> Self:
        """See `begun`: the model is part of the name, model and plan are deciding."""
        return cls.begun(
            [Path(word).stem for word in (model.name, *words)],
            {"model": model.identity, "plan": digest, **deciding},
            model=model_ref(model),
            plan_digest=digest,
            **fields,
        )


class PlanRecord(RecordOfPlan):
    """A record of one plan on one set of samples.

    The digest covers all that changes the numbers (model, plan, samples, settings), and how the
    plan was made, which is shown with them.
    """

    made_by: ClassVar[tuple[str, ...]] = MADE_BY  # facts that part records of equal plans

    plan: AllPlanFacts
    corpus: SampleFacts  # see `DrawnSamples.corpus`
    settings: RunFacts

    @classmethod
    def new(
        cls,
        model: MoEModel,
        plan: PruningPlan,
        corpus: Mapping[str, Any],
        settings: Mapping[str, Any],
        *,
        routing: Routing | None = None,
    ) -> Self:
        """A record without results; `plan` is complete, see `fit_plan`.

        `settings` are those that change the numbers; for `routing` see `plan_facts`.
        """
        facts = plan_facts(plan, model, routing)
        if plan.granularity == NEURON_GRANULARITY and not plan.bits:
            facts = facts.model_copy(update={"bytes_in_bits": bytes_in_formats(model, plan)})
        return cls.begun_with(
            model,
            plan.digest,
            (facts.criterion or ("plan" if facts.removed else "unpruned"), str(corpus["name"])),
            {
                "corpus": corpus["digest"],
                "settings": dict(settings),
                "made": facts.model_dump(include=set(cls.made_by)),
            },
            plan=facts,
            corpus=corpus,
            settings=settings,
            **cls.facts_of(plan),
        )

    @classmethod
    def facts_of(cls, plan: PruningPlan) -> dict[str, Any]:
        """Fields that a kind of record takes from the plan besides `plan`."""
        del plan
        return {}


class EvaluationRecord(DisplayMixin, PlanRecord):
    """The measures of one plan on one set of samples; `result.json`.

    Its settings are `dtype` and `seed` (of bootstrap and draws).
    """

    folder = "evaluations"
    word = "evaluation"
    command = "evaluate"
    measured = "metrics"
    optional = frozenset({"samples", "right_answers"})

    record_id: str = Field(alias="evaluation_id")
    num_samples: Count = 0
    num_tokens: Count = 0  # scored positions of all samples
    metrics: Mapping[str, Metric] = {}  # by measure
    # `nll` and `ppl` of the original model on the same samples, and `right` on the same questions
    full: Mapping[str, Metric] = {}
    # None if the loss was not measured; files of older versions lack it.
    samples: SampleLosses | None = None
    right_answers: RightAnswers | None = None  # None if no answers were checked

    @model_validator(mode="after")
    def _can_be(self) -> Self:
        check_metrics(self.metrics)
        check_metrics(self.full)
        counts = self.samples.tokens if self.samples else ()
        if counts and (len(counts), sum(counts)) != (self.num_samples, self.num_tokens):
            raise ValueError(
                f"it has {self.num_tokens} tokens of {self.num_samples} samples, but losses of "
                f"{sum(counts)} of {len(counts)}"
            )
        answers = self.right_answers
        if (answers is None) != (RIGHT not in self.metrics):
            raise ValueError(f"it has {RIGHT} without the answers, or answers without {RIGHT}")
        shares = [each[RIGHT].mean for each in (self.metrics, self.full) if RIGHT in each]
        if answers and shares != [answers.share, answers.full_share]:
            raise ValueError(f"its {RIGHT} is not that of its answers")
        return self

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
        losses = [each["nll"].mean for each in (self.metrics, self.full) if "nll" in each]
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

    def with_results(self, result: Evaluation, run_facts: Mapping[str, Any]) -> Self:
        """The record with the measures of an evaluation added."""
        metrics = {**self.metrics, **result.metrics}
        for name, metric in metrics.items():
            if not all(math.isfinite(value) for value in (metric.mean, metric.pooled)):
                raise StatsError(
                    f"The measure {name} of {self.record_id} is no finite number; the model "
                    "gives infinite or undefined logits, perhaps for lack of range: try --dtype "
                    "bfloat16 or float32."
                )
        losses = SampleLosses.of(result.samples)
        return self.finished(
            run_facts,
            **({"samples": losses} if losses else {}),
            num_samples=result.num_samples,
            num_tokens=result.num_tokens,
            metrics=metrics,
            full={**self.full, **result.full},
        )

    def with_right_answers(self, answers: RightAnswers, run_facts: Mapping[str, Any]) -> Self:
        """The record with answers added, in the place of earlier ones."""
        return self.finished(
            run_facts,
            right_answers=answers,
            metrics={**self.metrics, RIGHT: answers.metric},
            full={**self.full, RIGHT: answers.full_metric},
        )


def made_facts(plan: PruningPlan) -> PlanFacts:
    """How a plan was made, without its sizes."""
    facts = PlanFacts.model_validate(plan.provenance, from_attributes=True)
    named = {"bits": plan.bits, "top_k": plan.top_k}
    changes: dict[str, Any] = {name: value for name, value in named.items() if value}
    if plan.repair:
        changes |= {
            "repair": plan.repair.record_id,
            "repaired_on": plan.repair.corpora,
            "repair_tokens": plan.repair.tokens,
        }
    return facts.model_copy(update=changes)


def plan_facts(plan: PruningPlan, model: MoEModel, routing: Routing | None = None) -> PlanFacts:
    """How a plan was made, and what it leaves of the original model.

    `routing` is how often experts are chosen: `active` and `flops` depend on it if experts differ
    in width. `measured` says whether it was given.
    """
    report = size_report(model, plan, routing)
    before, after = (int(p[ModelPart.EXPERTS][PARAMS]) for p in (report.before, report.after))
    sizes = {
        "granularity": plan.granularity,
        "experts_before": report.experts_before,
        "experts_after": report.experts_after,
        "removed": 1 - after / before,
        "bytes_before": report.bytes_before,
        "bytes_after": report.bytes_after,
        "active_before": report.active_before,
        "active_after": report.active_after,
        "flops_before": report.expert_flops,
        "flops_after": report.expert_flops_after,
        "measured": report.is_measured,
    }
    return made_facts(plan).model_copy(update=sizes)


def bytes_in_formats(model: MoEModel, plan: PruningPlan) -> dict[str, int]:
    """Format -> bytes of all weights after a complete plan in it, of those that save bytes."""
    return {
        bits: size_report(model, replace(plan, bits=bits)).bytes_after for bits in fewer_bits(model)
    }


class EvaluationStore(RecordStore[EvaluationRecord]):
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
            **record.plan.columns,
            "corpus": record.corpus["name"],
            "measure": name,
            **asdict(metric),
            "full": record.full[name].mean if name in record.full else None,
            "num_samples": record.count_of(name).samples,
            "num_documents": record.count_of(name).documents,
            "num_tokens": record.num_tokens,
            "dtype": record.settings["dtype"],
            "created_at": record.created_at,
        }
        for record in records
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
