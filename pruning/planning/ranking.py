"""Rankings of a model's experts or neurons for a spec, and the statistics behind them."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from analysis.cache_keys import most_results
from analysis.calibration.weights import weight_statistics
from analysis.corpora.spec import corpus_name, parse_corpus_weight
from analysis.criteria import CRITERIA, Criterion
from analysis.drain import drain
from analysis.errors import PlanError
from analysis.files.shipped import tool_version
from analysis.lazy import pd
from analysis.machine.launcher import launched_world
from analysis.model.moe_model import MoEModel
from analysis.model.widths import computed_widths
from analysis.numbers.arrays import NeuronScores
from analysis.progress import Progress
from analysis.ranking.choose import Choice
from analysis.ranking.experts import fold_ranking, rank_experts
from analysis.ranking.neurons import neuron_saliency, rank_neurons, read_neurons
from analysis.ranking.super_experts import SuperExperts, super_experts
from analysis.stats.columns import Gate
from analysis.stats.store import StatsStore
from pruning.measures.curves import Sensitivity
from pruning.plan.budget import Budget
from pruning.plan.expert_sizes import Routing
from pruning.plan.plan import Provenance
from pruning.plan.shown import DisplayMixin, Facts
from pruning.plan.units import Units
from pruning.planning.choice import row_counts
from pruning.requests.model import ModelRequest
from pruning.requests.plan import SpecRequest
from pruning.schedules import MEASURED, SCHEDULES, Evidence
from pruning.schedules.counts import read_counts
from pruning.search.store import SEARCH, order_digest, search_in
from pruning.spec.base import command_line, option_words, repeated
from pruning.spec.spec import (
    FREQUENCY,
    BudgetSpec,
    LimitsSpec,
    PlanSpec,
    RankingSpec,
    SpreadSpec,
)

# Whole layers are measured whatever the plan keeps of them.
_OF_LIMITS = (name for name in LimitsSpec.model_fields if name not in ("protect", "set"))
_OF_ORDER = ("granularity", "criterion", "gate", *_OF_LIMITS)


@dataclass(frozen=True, slots=True)
class Place:
    """How command lines name a model and its statistics."""

    model: str
    revision: str | None = None
    stats_dir: Path | None = None

    @classmethod
    def of(cls, request: ModelRequest) -> Place:
        """Where a request looks."""
        stats_dir: Path | None = getattr(request, "stats_dir", None)
        return cls(request.model, request.revision, stats_dir)

    def request(self, spec: PlanSpec) -> SpecRequest:
        """A plan of the model, as a command asks for it."""
        return SpecRequest(
            model=self.model, revision=self.revision, plan=spec, stats_dir=self.stats_dir
        )

    @property
    def words(self) -> list[str]:
        """As words of a command line."""
        stats_dir = ["--stats-dir", str(self.stats_dir)] if self.stats_dir else []
        return [self.model, *stats_dir]

    @property
    def cache_key(self) -> str:
        """All of it."""
        return repr(self)


@dataclass(frozen=True, eq=False, repr=False)
class Ranking(DisplayMixin):
    """A model's experts or neurons in the order that a spec asks for; plans of any budget."""

    model: MoEModel
    spec: PlanSpec
    choice: Choice[Any]  # the statistics that it reads; for neurons, the table of `read_neurons`
    place: Place
    tokens: Choice[Any] | None = None  # of a calibration, where schedule or limits read one
    sensitivity: Sensitivity | None = None  # of the order, where the measured schedule reads one

    @cached_property
    def criterion(self) -> Criterion:
        """What ranks."""
        return self.spec.ranking.rule

    @property
    def gate(self) -> Gate:
        """The gate weights that the criterion reads."""
        return self.spec.ranking.gate

    @property
    def by_neuron(self) -> bool:
        """Whether neurons are ranked, and not experts."""
        return self.spec.by_neuron

    @property
    def cache_key(self) -> tuple[object, ...]:
        """The model, the spec, and the statistics as they were read."""
        tables = filter(None, (self.choice, self.tokens, self.sensitivity))
        keys = [table.cache_key for table in tables]
        return self.model.identity, self.place.cache_key, self.spec.cache_key, *keys

    @property
    def shown(self) -> Facts:
        """The facts that a console or a notebook shows; `table` has the numbers."""
        return {
            "model": self.model.name,
            "criterion": self.criterion.name,
            "gate": self.gate if self.criterion.uses_gate else "none",
            "corpora": " + ".join(self.choice.corpora) or "none",
            "granularity": self.spec.ranking.granularity,
            "experts": self.model.num_experts,
        }

    @cached_property
    def table(self) -> pd.DataFrame:
        """Table `layer, expert, score, saliency, rank, num_tokens`; for neurons also `neuron`."""
        if self.by_neuron:
            return rank_neurons(self.criterion, self.choice.stats)
        return rank_experts(self.criterion, self.choice.stats, self.gate)

    @cached_property
    def neurons(self) -> NeuronScores:
        """Layer -> for each expert, the saliency of each of its neurons; higher = keep."""
        return neuron_saliency(self.criterion, self.choice.stats, computed_widths(self.model))

    @cached_property
    def routing(self) -> Routing | None:
        """How often each expert was chosen, if a calibration ranks neurons."""
        if not self.by_neuron or self.criterion.source != "routed":
            return None
        # An expert without neurons has no rows.
        every = {layer.index: [0.0] * layer.num_experts for layer in self.model.layers}
        first = self.choice.stats.drop_duplicates(["layer", "expert"])
        columns = first[["layer", "expert", "num_tokens"]]
        for layer, expert, tokens in columns.itertuples(index=False):
            every[int(layer)][int(expert)] = float(tokens)
        return every

    @cached_property
    def supers(self) -> SuperExperts | None:
        """The super experts by the calibration behind it; None without a calibration."""
        choices = filter(None, (self.choice, self.tokens))
        every = [run for choice in choices for run in choice.runs if run.manifest.kind == "routed"]
        runs = list({run.manifest.run_id: run for run in every}.values())
        return super_experts(runs) if runs else None

    def settled(self, spec: PlanSpec) -> PlanSpec:
        """The spec with the super experts pinned, if it says `keep_super`."""
        if not spec.limits.keep_super:
            return spec
        if (supers := self.supers) is None:
            raise PlanError("--keep-super needs a calibration, and none was read; name a corpus.")
        if supers.unknown:
            raise PlanError(
                f"--keep-super needs the largest outputs of experts, which {supers.unknown[0]} "
                "of an earlier version does not have; `moeprune runs remove` it and calibrate "
                "again."
            )
        pinned = {layer: frozenset(ids) for layer, ids in spec.limits.pin.items()}
        for layer, experts in supers.experts.items():
            pinned[layer] = pinned.get(layer, frozenset()) | experts
            if both := experts & set(spec.limits.drop.get(layer, ())):
                raise PlanError(
                    f"Expert {min(both)} of layer {layer} is a super expert, which --keep-super "
                    "keeps and --drop removes; leave one of the two out."
                )
        pin = {layer: tuple(sorted(pinned[layer])) for layer in sorted(pinned)}
        # Not `changed`: the spec may lack a budget, which that refuses.
        limits = spec.limits.model_copy(update={"keep_super": False, "pin": pin})
        return spec.model_copy(update={"limits": limits})

    @property
    def without_budget(self) -> Ranking:
        """The same with a spec that has only what decides the order."""
        spec = self.spec
        free = spec.model_copy(
            update={
                "budget": BudgetSpec(),
                "spread": SpreadSpec(schedule=MEASURED, cost=spec.spread.cost),
                "limits": spec.limits.model_copy(update={"protect": (), "set": {}}),
            }
        )
        return replace(self, spec=free)

    @cached_property
    def evidence(self) -> Evidence:
        """What schedules may look at: saliency, and token counts if there are any."""
        layers, frequency = self.model.layers, None
        if self.tokens is not None:
            by_tokens = rank_experts(CRITERIA[FREQUENCY], self.tokens.stats, self.gate)
            frequency = fold_ranking(by_tokens, layers)
        saliency = fold_ranking(self.table, layers)
        return Evidence(saliency, frequency, sensitivity=self.sensitivity)

    def curves_for(self, spec: PlanSpec) -> Sensitivity:
        """The curves that the measured schedule of a spec reads; a PlanError without them."""
        if self.sensitivity is None:
            raise needs_sensitivity(self, spec)
        return self.sensitivity

    def evidence_for(self, spec: PlanSpec) -> Evidence:
        """What the schedule of a spec may look at, with the counts of its file.

        A PlanError where it reads what this ranking has not.
        """
        if SCHEDULES[spec.spread.schedule].reads_tokens and self.tokens is None:
            raise PlanError(
                f"The {spec.spread.schedule} schedule counts routed tokens, and this ranking by "
                f"{self.criterion.name} read no corpus; rank with one."
            )
        if spec.spread.is_measured:
            self.curves_for(spec)  # refuses where nothing was measured
        path = spec.spread.schedule_file
        if path is None:
            return self.evidence
        return replace(self.evidence, counts=read_counts(path, self.model.layers))

    def provenance(self, spec: PlanSpec, units: Units, budget: Budget) -> Provenance:
        """How a plan was made."""
        read, tokens, spread = [self.choice], self.tokens, spec.spread
        schedule, parameters, record = spread.schedule, dict[str, Any](), recorded(spec, self)
        if spec.reads_text and tokens and tokens is not self.choice:
            read.append(tokens)
        if spec.by_neuron:
            scope = str(spread.scope)
            schedule, parameters = f"neurons by {scope}", {"scope": scope}
        elif (file := spread.schedule_file) is not None:
            searched, parameters = search_in(file), {"file": file.name}
            # In another order than its own, the counts of a search are no longer its result.
            if searched and searched.order == order_digest(self.table):
                schedule, parameters = SEARCH, searched.parameters()
                record = searched.spec.to_json()  # as the search itself records its plan
        if spread.is_measured:
            schedule, parameters = MEASURED, parameters | self.curves_for(spec).to_dict()
        if spec.by_neuron and (spec.budget.target_size or spec.budget.shrink):
            parameters["widths"] = spec.budget.widths.to_json()
        return Provenance(
            criterion=self.criterion.name,
            gate=spec.ranking.gate if self.criterion.uses_gate else "",
            corpora=tuple(name for choice in read for name in choice.corpora),
            runs=tuple(run.manifest.run_id for choice in read for run in choice.runs),
            schedule=schedule,
            sparsity=spec.budget.sparsity or "",
            tool_version=tool_version(),
            budget=budget.to_dict(),
            schedule_parameters=parameters,
            constraints=units.limits.to_dict(),
            spec=record,
            rows=row_counts(run for choice in read for run in choice.runs),
        )


def scores_of_neurons(
    ranking: RankingSpec, model: MoEModel, store: StatsStore
) -> Generator[Progress, None, Choice[Any]]:
    """The saliency of every neuron; norms of weights are measured now, which takes seconds."""
    corpora = [parse_corpus_weight(text) for text in ranking.corpora]
    return (yield from read_neurons(ranking.rule, store, model, corpora, ranking.runs))


@most_results(8)
def neuron_choice(ranking: RankingSpec, model: MoEModel, store: StatsStore) -> Choice[Any]:
    """The same at once, for a page, which waits for it."""
    return drain(scores_of_neurons(ranking, model, store))


def weights_measured(
    criterion: Criterion, model: MoEModel, store: StatsStore
) -> Generator[Progress, None, None]:
    """Measure the model's weights if the criterion reads them and the store lacks them."""
    # The processes of a launcher must all take part, also where only some see the statistics.
    if criterion.source == "weights" and (
        launched_world() > 1 or not store.of_model(model.identity, "weights")
    ):
        yield from weight_statistics(model, store)


def recorded(spec: PlanSpec, ranking: Ranking | None = None) -> dict[str, Any]:
    """A spec as plain JSON for records: corpora as they were read, files by their names."""
    choices = [ranking.choice, ranking.tokens] if ranking else []
    corpora = next((choice.corpora for choice in choices if choice and choice.corpora), ())
    spread = spec.spread
    changes: dict[str, Any] = {"measured_on": tuple(map(corpus_name, spread.measured_on))}
    for name in ("schedule_file", "kept_experts", "kept_neurons"):
        if path := getattr(spread, name):
            changes[name] = path.name
    if spec.reads_text:
        changes["corpora"] = corpora
    return spec.changed(**{name: value for name, value in changes.items() if value}).to_json()


def needs_sensitivity(ranking: Ranking, spec: PlanSpec) -> PlanError:
    """The error that names the command to measure what a plan needs."""
    corpora = spec.spread.measured_on
    on = f" on {' and '.join(corpora)}" if corpora else ""
    model, *statistics = ranking.place.words
    words = ["sensitivity", model, *option_words(spec, only=_OF_ORDER), *statistics]
    words += repeated("--calibrated-on", spec.ranking.corpora)
    words += repeated("--corpus", corpora or ("CORPUS",))
    return PlanError(
        f"The sensitivity of this order by {spec.ranking.criterion} was not measured{on} yet; run "
        f"`{command_line(*words)}` first."
    )


def criterion_badge(criterion: Criterion) -> str:
    """Exponents of a unified variant, or the source of another criterion."""
    if criterion.exponents is not None:
        b, alpha, beta = criterion.exponents
        return f"b={b} α={alpha} β={beta}"  # noqa: RUF001  (Greek on purpose)
    return {"routed": "calibrated", "weights": "weights only", "none": "no data"}[criterion.source]
