"""Records of plans, one small JSON file each: evaluations, answers, variance of hidden states."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import numpy as np
from pydantic import AfterValidator, Field

from analysis.arrays import FloatArray
from analysis.errors import StatsError
from analysis.lazy import pd
from analysis.model import MoEModel
from pruning.active import Routing
from pruning.evaluate.result import Evaluation, Metric, SampleSums
from pruning.evaluate.store import (
    SCHEMA_VERSION,
    Count,
    Record,
    RecordPart,
    RecordStore,
    RunFacts,
    SampleFacts,
)
from pruning.plan import Provenance, PruningPlan, model_ref
from pruning.sizes import Part, size_report

if TYPE_CHECKING:
    from pruning.evaluate.answers import Answer

TABLE_COLUMNS = (
    *("evaluation", "model", "plan", "criterion", "calibrated_on", "schedule", "granularity"),
    *("sparsity", "removed", "bytes", "active_params", "expert_flops", "corpus"),
    *("measure", "mean", "pooled", "low", "high", "full"),
    *("num_samples", "num_tokens", "created_at"),
)
# The facts on the origin of a plan: stored separately even for equal plans.
# Not the runs: repeated with more groups they have other ids but equal numbers.
MADE_BY = ("criterion", "gate", "corpora", "schedule", "sparsity")
_SUMMED = ("nll", "full_nll")
_DIGITS = 6  # of a sum, after the point


class PlanFacts(RecordPart):
    """What a record says of a plan: how it was made and what it leaves, as far as that is known."""

    # criterion, gate, corpora, runs, schedule, sparsity: see `Provenance`.
    criterion: str = ""
    gate: str = ""
    corpora: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()
    schedule: str = ""
    sparsity: str = ""
    granularity: str = ""  # `expert` or `atomic`
    # experts_before, experts_after: routed experts of all layers.
    experts_before: Count | None = None
    experts_after: Count | None = None
    # The fraction of the weights of routed experts that goes, neurons included; where whole experts
    # go that is the fraction of experts.
    removed: Annotated[float, Field(ge=0)] | None = None
    # bytes_before, bytes_after: of all weights of the checkpoint.
    bytes_before: Count | None = None
    bytes_after: Count | None = None
    # active_before, active_after: parameters that one token uses.
    active_before: Count | None = None
    active_after: Count | None = None
    # flops_before, flops_after: of a token in routed experts.
    flops_before: Count | None = None
    flops_after: Count | None = None
    measured: bool | None = None  # whether `active` and `flops` know how often experts are chosen

    @property
    def columns(self) -> dict[str, Any]:
        """What tables of records say of a plan: `removed` is what `sparsity`, as text, came to;
        `bytes`, `active_params` and `expert_flops` are what is left.
        """
        return {
            **self.model_dump(include={"criterion", "schedule", "granularity", "sparsity"}),
            **{"calibrated_on": "+".join(self.corpora), "removed": self.removed},
            **{"bytes": self.bytes_after, "active_params": self.active_after},
            "expert_flops": self.flops_after,
        }


def _complete(facts: PlanFacts) -> PlanFacts:
    missing = [name for name, value in facts if value is None]
    if missing := missing or sorted(set(MADE_BY) - facts.model_fields_set):
        raise ValueError(f"it lacks {', '.join(missing)}")
    return facts


AllPlanFacts = Annotated[PlanFacts, AfterValidator(_complete)]


class RecordOfPlan(Record):
    """A record of one plan."""

    # See `PruningPlan.digest`; of the unpruned model, that of keeping everything.
    plan_digest: str
    plan: PlanFacts  # what a person should know of the plan, see `plan_facts`

    @classmethod
    def begun_with(
        cls,
        planned: tuple[MoEModel, PruningPlan, PlanFacts],
        words: Iterable[str],
        deciding: Mapping[str, Any],
        **known: Any,
    ) -> Self:
        """See `begun`: model and plan name it and decide too."""
        model, plan, facts = planned
        return cls.begun(
            [Path(word).stem for word in (model.name, *words)],
            {"model": model.identity, "plan": plan.digest, **deciding},
            model=model_ref(model),
            plan_digest=plan.digest,
            plan=facts,
            **known,
        )


class PlanRecord(RecordOfPlan):
    """A record of what one plan does on one set of samples.

    The digest is of all that changes the numbers (model, plan, samples, settings) and of how the
    plan came about, which is shown with them.
    """

    plan: AllPlanFacts
    corpus: SampleFacts  # `name`, `digest`, and which documents were drawn, see `Drawn.facts`
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
        """A record without results yet.

        `plan` is completed for the model, see `fit_plan`; `settings` is what else changes the
        numbers; for `routing` see `plan_facts`.
        """
        facts = plan_facts(plan, model, routing)
        return cls.begun_with(
            (model, plan, facts),
            (facts.criterion or ("plan" if facts.removed else "unpruned"), str(corpus["name"])),
            {
                "corpus": corpus["digest"],
                "settings": dict(settings),
                "made": facts.model_dump(include=set(MADE_BY)),
            },
            corpus=corpus,
            settings=settings,
        )


class SampleLosses(RecordPart):
    """The loss of every sample, in nats summed over its scored positions; in their order."""

    tokens: tuple[Annotated[int, Field(ge=1)], ...]  # scored positions of each sample
    nll: tuple[float, ...]  # of the pruned model
    full_nll: tuple[float, ...]  # of the original model

    @classmethod
    def of(cls, samples: Mapping[str, SampleSums]) -> Self | None:
        """From the sums of an evaluation; None where the loss was not measured."""
        if not {"nll", "full_nll"} <= samples.keys():
            return None
        sums = {name: np.round(samples[name].sums, _DIGITS).tolist() for name in _SUMMED}
        return cls(tokens=samples["nll"].counts.tolist(), **sums)

    @property
    def means(self) -> FloatArray:
        """(samples,) nats per token of the pruned model."""
        return np.divide(self.nll, self.tokens)

    @property
    def full_means(self) -> FloatArray:
        """(samples,) nats per token of the original model."""
        return np.divide(self.full_nll, self.tokens)

    def picked(self, part: slice) -> Self:
        """Those of some of the samples."""
        return self.model_copy(update={name: values[part] for name, values in self})


def _as_many(losses: SampleLosses | None) -> SampleLosses | None:
    if losses and len({len(values) for _, values in losses}) > 1:
        raise ValueError("it has another number of samples than of their losses")
    return losses


class EvaluationRecord(PlanRecord):
    """What the measures say of one plan on one set of samples; `result.json`.

    Its settings are `dtype` and `seed` (of bootstrap and draws).
    """

    folder = "evaluations"
    word = "evaluation"
    command = "evaluate"
    measured = "metrics"
    optional = frozenset({"samples"})

    record_id: str = Field(alias="evaluation_id")
    # num_samples, num_tokens: samples, and positions scored in all of them.
    num_samples: Count = 0
    num_tokens: Count = 0
    metrics: Mapping[str, Metric] = {}  # measure -> number
    full: Mapping[str, Metric] = {}  # `nll` and `ppl` of the unpruned model on the same samples
    # Of every sample; None where the loss was not measured, or before samples were kept.
    samples: Annotated[SampleLosses | None, AfterValidator(_as_many)] = None

    def with_results(self, result: Evaluation, made: Mapping[str, Any]) -> Self:
        """The record with the measures of an evaluation added to those that it has."""
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
            made,
            **({"samples": losses} if losses else {}),
            num_samples=result.num_samples,
            num_tokens=result.num_tokens,
            metrics=metrics,
            full={**self.full, **result.full},
        )


def made_facts(made: Provenance) -> PlanFacts:
    """What a record says of how a plan came about; see `Provenance`."""
    return PlanFacts.model_validate(made, from_attributes=True)


def plan_facts(plan: PruningPlan, model: MoEModel, routing: Routing | None = None) -> PlanFacts:
    """What a record says of a plan: how it was made and what it leaves of the original model.

    `routing` is how often experts are chosen, which `active` and `flops` depend on where experts
    differ in width; `measured` says whether it was given.
    """
    report = size_report(model, plan, routing)
    before, after = report.parts[Part.EXPERTS][:, 1].tolist()
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
    return made_facts(plan.provenance).model_copy(update=sizes)


class EvaluationStore(RecordStore[EvaluationRecord]):
    """Evaluations of one or more statistics directories; new ones go to the first."""

    kind = EvaluationRecord


def evaluation_table(records: Iterable[EvaluationRecord]) -> pd.DataFrame:
    """Table of TABLE_COLUMNS, one row a measure of a record.

    `plan` is the plan's digest, for its other columns see `PlanFacts.columns`; `full` is what the
    unpruned model gets, missing where the measure is of the difference between both.
    """
    rows = [
        {
            **{"evaluation": record.record_id, "model": record.model.name},
            **{"plan": record.plan_digest, **record.plan.columns, "corpus": record.corpus["name"]},
            **{"measure": name, **asdict(metric)},
            "full": record.full[name].mean if name in record.full else None,
            **{"num_samples": record.num_samples, "num_tokens": record.num_tokens},
            "created_at": record.created_at,
        }
        for record in records
        for name, metric in record.metrics.items()
    ]
    table = pd.DataFrame(rows, columns=list(TABLE_COLUMNS))
    floats = ("removed", "mean", "pooled", "low", "high", "full")
    return table.astype(dict.fromkeys(floats, "float64"))


def results_of(records: Sequence[EvaluationRecord]) -> dict[str, Any]:
    """The content of result.json: the evaluation, or `evaluations` where there are several."""
    if len(records) == 1:
        return records[0].to_dict()
    whole = {"schema_version": SCHEMA_VERSION}
    return whole | {"evaluations": [record.to_dict() for record in records]}


class KeptAnswer(RecordPart):
    """What one model says."""

    text: str
    num_tokens: Count
    agreed: Count  # tokens at the beginning that are those of the original model
    seconds: Annotated[float, Field(ge=0)]


class AnswerRecord(RecordOfPlan):
    """The answers of the original model and of what a plan leaves of it, to one prompt.

    Its settings are `dtype`, `max_new_tokens` and `raw`.
    """

    folder = "answers"
    word = "pair of answers"
    command = "ask"
    measured = "answers"

    record_id: str = Field(alias="answers_id")
    prompt: str
    answers: tuple[KeptAnswer, ...] = ()  # of the original model, then of the pruned one
    settings: RunFacts

    @classmethod
    def of(
        cls,
        model: MoEModel,
        plan: PruningPlan,
        asked: tuple[str, dict[str, object]],
        pair: tuple[Answer, Answer],
    ) -> Self:
        """The record of a pair; `asked` are the prompt and the settings."""
        prompt, settings = asked
        facts = plan_facts(plan, model)
        begun = cls.begun_with(
            (model, plan, facts),
            (facts.criterion or "plan", "answers"),
            {"prompt": prompt, "settings": settings},
            prompt=prompt,
            settings=settings,
        )
        kept = tuple(
            KeptAnswer(text=a.text, num_tokens=len(a.ids), agreed=a.agreed, seconds=a.seconds)
            for a in pair
        )
        return begun.finished({}, answers=kept)


class AnswerStore(RecordStore[AnswerRecord]):
    """Pairs of answers of one or more statistics directories; new ones go to the first."""

    kind = AnswerRecord


VARIANCE_COLUMNS = ("layer", "model", "variance", "num_tokens")
VARIANCE_TABLE_COLUMNS = (
    *("record", "plan", "criterion", "calibrated_on", "schedule", "granularity", "sparsity"),
    *("removed", "bytes", "corpus", "draw", "layer", "variance", "full"),
    *("num_tokens", "dtype", "created_at"),
)


class VarianceRecord(PlanRecord):
    """The variance of hidden states after each decoder layer, under one plan.

    Its settings are `dtype`, `seed` and `tokens` (the most that are drawn).
    """

    folder = "variances"
    word = "record of hidden states"
    command = "variance"
    measured = "variances"

    # After each decoder layer, dense ones too, the first one first; empty: not measured yet.
    variances: tuple[float, ...] = ()
    num_tokens: Count = 0  # that the variance is the mean of

    @property
    def draw(self) -> str:
        """Names the tokens and how they were computed: only equal ones may be compared."""
        return f"{self.corpus['digest']} {self.settings}"

    def with_results(
        self, variances: Sequence[float], num_tokens: int, made: Mapping[str, Any]
    ) -> Self:
        """The record with what was measured."""
        if not all(map(math.isfinite, variances)):
            raise StatsError(
                f"A variance of {self.record_id} is no finite number; the model's hidden states "
                "overflow, perhaps for lack of range: try --dtype bfloat16 or float32."
            )
        return self.finished(made, variances=tuple(map(float, variances)), num_tokens=num_tokens)


class VarianceStore(RecordStore[VarianceRecord]):
    """Records of hidden states of one or more statistics directories; new ones go to the first."""

    kind = VarianceRecord


def variance_table(found: Mapping[str, VarianceRecord]) -> pd.DataFrame:
    """Table of VARIANCE_COLUMNS: one row for each decoder layer of each record, by its name."""
    rows = [
        (layer, name, value, record.num_tokens)
        for name, record in found.items()
        for layer, value in enumerate(record.variances)
    ]
    return pd.DataFrame(rows, columns=list(VARIANCE_COLUMNS))


def variance_overview(records: Iterable[VarianceRecord]) -> pd.DataFrame:
    """Table of VARIANCE_TABLE_COLUMNS, one row a decoder layer of a record.

    The plan's columns are those of an evaluation; `draw` tells apart the tokens of one corpus;
    `full` is the unpruned model's variance on the same tokens, missing where it was not measured.
    """
    known = [record for record in records if record.is_measured]
    whole = {record.draw: record.variances for record in known if not record.plan.removed}
    rows = [
        {
            **{"record": record.record_id, "plan": record.plan_digest, **record.plan.columns},
            **{"corpus": record.corpus["name"], "draw": record.draw, "layer": layer},
            "variance": value,
            "full": dict(enumerate(whole.get(record.draw, ()))).get(layer),
            **{"num_tokens": record.num_tokens, "dtype": record.settings["dtype"]},
            "created_at": record.created_at,
        }
        for record in known
        for layer, value in enumerate(record.variances)
    ]
    table = pd.DataFrame(rows, columns=list(VARIANCE_TABLE_COLUMNS))
    return table.astype(dict.fromkeys(("removed", "variance", "full"), "float64"))
