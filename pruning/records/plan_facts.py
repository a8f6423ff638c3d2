"""How a plan was made and what it leaves, as records of it say, and the records of one plan."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field

from analysis.criteria.base import Granularity
from analysis.model.moe_model import MoEModel
from pruning.measures.store import Count, Record, RecordPart, RunFacts, SampleFacts
from pruning.plan.expert_sizes import Routing, fewer_bits
from pruning.plan.plan import NEURON_GRANULARITY, PruningPlan, model_ref
from pruning.plan.sizes import PARAMS, ModelPart, size_report
from pruning.plan.variant_words import variant_words
from pruning.spec.spec import PlanSpec

# The values of `variant_words`.
VARIANT_COLUMNS = ("repaired_on", "calibrated_on", "bits", "top_k", "repair_tokens")
# How a plan was made: equal plans made differently have separate records. Runs are not part of it:
# repeated with more groups they have other ids and equal numbers.
MADE_BY = ("criterion", "gate", "corpora", "schedule", "sparsity")
_COUNTS = r"^([1-9]\d{0,3}(\.[1-9]\d{0,3})*)?$"


# Pages ask it of every measured plan on every run; a check takes ten times as long as a look-up.
@lru_cache(maxsize=1 << 12)
def _spec_of(text: str) -> PlanSpec:
    return PlanSpec.model_validate_json(text)


def _text_of(top_k: object) -> object:
    return str(top_k or "") if type(top_k) is int else top_k


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
    bits: Literal["", "8", "6", "5", "4", "mxfp4", "3", "2", "by layer"] = ""
    layer_bits: Mapping[str, str] = {}  # decoder index -> format, where layers have their own
    # Experts per token, if fewer than the model's own, see `PruningPlan.per_token`; in records of
    # before a number.
    top_k: Annotated[str, BeforeValidator(_text_of), Field(pattern=_COUNTS)] = ""
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
        return _spec_of(json.dumps(self.spec)) if self.spec else None

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
    def differs_by_layer(self) -> bool:
        """Whether its layers select different numbers of experts per token."""
        return "." in self.top_k

    @property
    def columns(self) -> dict[str, Any]:
        """Columns of tables of records; `sparsity` as asked, `removed` and sizes as they are."""
        return {
            "criterion": self.criterion,
            "schedule": self.schedule,
            "sparsity": self.sparsity,
            "granularity": self.granularity,
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
        if plan.granularity == NEURON_GRANULARITY and not plan.named_bits:
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


def made_facts(plan: PruningPlan) -> PlanFacts:
    """How a plan was made, without its sizes."""
    facts = PlanFacts.model_validate(plan.provenance, from_attributes=True)
    by_layer = {str(layer): name for layer, name in plan.layer_bits.items()}
    named = {"bits": plan.named_bits, "layer_bits": by_layer, "top_k": plan.per_token}
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
