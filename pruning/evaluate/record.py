"""Evaluation records: one small JSON file for each plan and corpus, kept beside the statistics."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import pandas as pd

from analysis.errors import StatsError
from analysis.model import ModelRef, MoEModel
from analysis.stats.store import digest_of, now, run_name
from pruning.active import Routing
from pruning.evaluate.result import Evaluation, Metric
from pruning.evaluate.store import RecordKind, RecordStore, file_json
from pruning.plan import Provenance, PruningPlan, model_ref
from pruning.sizes import Part, size_report

SCHEMA_VERSION = 1
TABLE_COLUMNS = (
    *("evaluation", "model", "plan", "criterion", "calibrated_on", "schedule", "granularity"),
    *("sparsity", "removed", "bytes", "active_params", "expert_flops", "corpus"),
    *("measure", "mean", "pooled", "low", "high", "full"),
    *("num_samples", "num_tokens", "created_at"),
)
# What of a plan's facts says how it came about: it is kept apart even where the plan is the same.
# Not the runs: made again with more groups they have other ids and the same numbers.
MADE_BY = ("criterion", "gate", "corpora", "schedule", "sparsity")
_PLAN_WORDS = ("criterion", "gate", "schedule", "sparsity", "granularity")
_PLAN_NUMBERS = ("removed", "bytes_after", "active_after", "flops_after")


@dataclass(frozen=True)
class EvaluationRecord:
    """What was found out about one plan on one set of samples; `result.json`.

    Args:
        evaluation_id: readable name and 8 hex digits of the digest; the file's name.
        digest: of all that changes the numbers (model, plan, samples, element type, seed) and of
            how the plan came about, which is shown with them.
        model: that was evaluated.
        plan_digest: see `PruningPlan.digest`; of the unpruned model, that of keeping everything.
        plan: what a person should know of the plan, see `plan_facts`.
        corpus: `name`, `digest`, and which documents were drawn, see `Drawn.facts`.
        num_samples, num_tokens: samples, and positions scored in all of them.
        metrics: measure -> number.
        full: `nll` and `ppl` of the unpruned model on the same samples.
        settings: `dtype`, `seed` (of bootstrap and draws).
        made: `created_at`, `device`, `seconds`, `versions`; changes no number.
    """

    evaluation_id: str
    digest: str
    model: ModelRef
    plan_digest: str
    plan: Mapping[str, Any]
    corpus: Mapping[str, Any]
    num_samples: int
    num_tokens: int
    metrics: Mapping[str, Metric]
    full: Mapping[str, Metric]
    settings: Mapping[str, Any]
    made: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        return {"schema_version": SCHEMA_VERSION, **asdict(self)}

    @property
    def record_id(self) -> str:
        """The file's name, for the store."""
        return self.evaluation_id

    def to_json(self) -> str:
        """The content of the file."""
        return file_json(SCHEMA_VERSION, asdict(self))

    def with_results(self, result: Evaluation, made: Mapping[str, Any]) -> "EvaluationRecord":
        """The record with the measures of an evaluation added to those that it has.

        Raises:
            StatsError: a measure is no finite number.
        """
        metrics = {**self.metrics, **result.metrics}
        for name, metric in metrics.items():
            if not all(math.isfinite(value) for value in (metric.mean, metric.pooled)):
                raise StatsError(
                    f"The measure {name} of {self.evaluation_id} is no finite number; the model "
                    "gives infinite or undefined logits, perhaps for lack of range: try --dtype "
                    "bfloat16 or float32."
                )
        return replace(
            self,
            num_samples=result.num_samples,
            num_tokens=result.num_tokens,
            metrics=metrics,
            full={**self.full, **result.full},
            made={"created_at": now(), **made},
        )


def made_facts(made: Provenance) -> dict[str, Any]:
    """What a record says of how a plan came about; see `Provenance`."""
    return {
        "criterion": made.criterion,
        "gate": made.gate,
        "corpora": list(made.corpora),
        "runs": list(made.runs),
        "schedule": made.schedule,
        "sparsity": made.sparsity,
    }


def plan_facts(
    plan: PruningPlan, model: MoEModel, routing: Routing | None = None
) -> dict[str, Any]:
    """What a record says of a plan: how it was made and what it leaves.

    `removed` is the fraction of the weights of routed experts that goes, neurons included; where
    whole experts go that is the fraction of experts. `bytes` and `active` count all weights of the
    checkpoint, and those that one token uses; `flops` are those of a token in routed experts.

    Args:
        plan: for the model.
        model: the full model.
        routing: how often experts are chosen, which `active` and `flops` depend on where experts
            differ in width; `measured` says whether it was given.

    Raises:
        PlanError: the plan is not for this model.
    """
    report = size_report(model, plan, routing)
    experts = report.table.loc[report.table["part"] == str(Part.EXPERTS)]
    after, before = (int(experts[f"params_{when}"].sum()) for when in ("after", "before"))
    return {
        **made_facts(plan.provenance),
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


def identify(
    model: MoEModel,
    plan: PruningPlan,
    corpus: Mapping[str, Any],
    settings: Mapping[str, Any],
    facts: Mapping[str, Any],
) -> tuple[str, str]:
    """Readable name and digest of what one plan was found to do on one set of samples.

    Args:
        model: that is measured.
        plan: checked and completed for it, see `fit_plan`.
        corpus: `name`, `digest` (of tokens and of what is predicted), and what else is known.
        settings: what else changes the numbers.
        facts: see `plan_facts`.
    """
    digest = digest_of(
        {
            "schema_version": SCHEMA_VERSION,
            "model": model.identity,
            "plan": plan.digest,
            "corpus": corpus["digest"],
            "settings": dict(settings),
            "made": {key: facts[key] for key in MADE_BY},
        }
    )
    whole = "plan" if facts["removed"] else "unpruned"
    words = (model.name, facts["criterion"] or whole, str(corpus["name"]))
    return run_name(*(Path(word).stem for word in words), digest=digest), digest


def new_record(
    model: MoEModel,
    plan: PruningPlan,
    corpus: Mapping[str, Any],
    settings: Mapping[str, Any],
    *,
    routing: Routing | None = None,
) -> EvaluationRecord:
    """A record without results yet; see `identify`, and `plan_facts` for the routing."""
    facts = plan_facts(plan, model, routing)
    name, digest = identify(model, plan, corpus, settings, facts)
    return EvaluationRecord(
        evaluation_id=name,
        digest=digest,
        model=model_ref(model),
        plan_digest=plan.digest,
        plan=facts,
        corpus=dict(corpus),
        num_samples=0,
        num_tokens=0,
        metrics={},
        full={},
        settings=dict(settings),
        made={},
    )


def _metrics(raw: Mapping[str, Any]) -> dict[str, Metric]:
    found = {name: Metric(**values) for name, values in raw.items()}
    for name, metric in found.items():
        interval = [value for value in (metric.low, metric.high) if value is not None]
        if not all(map(_is_number, (metric.mean, metric.pooled, *interval))):
            raise ValueError(f"{name} is no finite number")
    return found


def _is_number(value: object) -> bool:
    """Whether a value is a finite number that a float can hold."""
    try:
        return type(value) in (int, float) and math.isfinite(value)  # type: ignore[arg-type]
    except OverflowError:
        return False


def _check(record: EvaluationRecord) -> None:
    """A ValueError for a record whose facts are not of the kinds that tables are made of."""
    plan, texts = record.plan, (record.evaluation_id, record.digest, record.plan_digest)
    words = [*texts, record.model.name, record.model.identity, record.corpus["name"]]
    words += [*(plan[key] for key in _PLAN_WORDS), *plan["corpora"], record.settings["dtype"]]
    if strange := [word for word in words if not isinstance(word, str)]:
        raise ValueError(f"{strange[0]!r} is no text")
    numbers = [plan[key] for key in _PLAN_NUMBERS] + [record.num_samples, record.num_tokens]
    if strange := [number for number in numbers if not _is_number(number) or number < 0]:
        raise ValueError(f"{strange[0]!r} is no number that can be")
    dict(record.made)


def _parsed(raw: Mapping[str, Any]) -> EvaluationRecord:
    record = EvaluationRecord(
        **{**raw}
        | {
            "model": ModelRef(**raw["model"]),
            "metrics": _metrics(raw["metrics"]),
            "full": _metrics(raw["full"]),
        }
    )
    _check(record)
    return record


EVALUATIONS: Final = RecordKind(
    "evaluations", "evaluation", "evaluate", SCHEMA_VERSION, parse=_parsed
)


class EvaluationStore(RecordStore[EvaluationRecord]):
    """Evaluations of one or more statistics directories; new ones go to the first."""

    def __init__(self, directories: Sequence[Path]) -> None:
        super().__init__(EVALUATIONS, directories)


def evaluation_table(records: Iterable[EvaluationRecord]) -> pd.DataFrame:
    """Table of TABLE_COLUMNS, one row a measure of a record.

    `plan` is the plan's digest, `calibrated_on` the corpora of its statistics joined by +;
    `sparsity` is what was asked for, as text, `removed` what it came to; `bytes`, `active_params`
    and `expert_flops` are what is left, see `plan_facts`; `full` is what the unpruned model gets,
    missing where the measure is of the difference between both.
    """
    rows = [
        (
            record.evaluation_id,
            record.model.name,
            record.plan_digest,
            record.plan["criterion"],
            "+".join(record.plan["corpora"]),
            record.plan["schedule"],
            record.plan["granularity"],
            record.plan["sparsity"],
            record.plan["removed"],
            record.plan["bytes_after"],
            record.plan["active_after"],
            record.plan["flops_after"],
            record.corpus["name"],
            name,
            *(metric.mean, metric.pooled, metric.low, metric.high),
            record.full[name].mean if name in record.full else None,
            *(record.num_samples, record.num_tokens, record.made.get("created_at", "")),
        )
        for record in records
        for name, metric in record.metrics.items()
    ]
    table = pd.DataFrame(rows, columns=list(TABLE_COLUMNS))
    numbers = dict.fromkeys(("removed", "mean", "pooled", "low", "high", "full"), "float64")
    return table.astype(numbers)
