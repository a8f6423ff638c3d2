"""The one door to rankings, plans and their losses: for commands, jobs, pages and Python alike."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

from analysis.cache_keys import Cache, most_results, uncached
from analysis.corpora.spec import parse_corpus_weight
from analysis.criteria import CRITERIA, Criterion
from analysis.errors import PlanError, StatsError, UserError
from analysis.model.moe_model import MoEModel
from analysis.progress import Progress
from analysis.ranking.choose import Choice, choose_stats, routed_choice, run_by_corpus
from analysis.ranking.neurons import chosen_neurons
from analysis.stats.manifest import Part, Run
from analysis.stats.reading import load_expert_stats, load_weight_stats
from analysis.stats.store import StatsStore
from analysis.stats.tables import ExpertStats, WeightStats
from pruning.measures.curves import Sensitivity
from pruning.measures.store import Kept, RecordStore, readable_records
from pruning.measures.sum_error import SumError
from pruning.plan.budget import Budget, sparsity_budget
from pruning.plan.dividing import parallel_note
from pruning.plan.plan import PruningPlan, keep_all
from pruning.plan.sizes import SizeReport, size_report
from pruning.plan.super_experts import super_note
from pruning.plan.units import NeuronScope, Units, expert_units
from pruning.planning.files import plan_of_file
from pruning.planning.make import (
    budget_of,
    experts_of,
    make_plan,
    neuron_units_of,
    with_further_notes,
)
from pruning.planning.measured import (
    Order,
    find_sensitivity,
    order_of,
    order_sensitivity,
)
from pruning.planning.per_token import with_mean_top_k
from pruning.planning.predicted import PredictedLoss, predicted_in_bits, predicted_loss, sum_error
from pruning.planning.ranking import (
    Place,
    Ranking,
    neuron_choice,
    recorded,
    scores_of_neurons,
    weights_measured,
)
from pruning.records.evaluation import EvaluationStore
from pruning.records.quality import PlanLoss, stored_losses
from pruning.records.repair import RepairStore
from pruning.records.sensitivity import SensitivityStore
from pruning.requests.model import ModelRequest
from pruning.requests.plan import SpecRequest
from pruning.schedules.counts import file_evidence
from pruning.search.store import KnownSearch, SearchStore, order_digest, read_known
from pruning.spec.spec import FREQUENCY, BudgetSpec, PlanSpec, SpreadSpec
from pruning.surgery.source_checks import source_notes

Store = TypeVar("Store", bound=RecordStore[Any])


@most_results(32)
def shared(ranking: Ranking) -> Ranking:
    """A ranking; cached, so that equal ones share their computed tables."""
    return ranking


@most_results(16)
def ranking_of_search(search: KnownSearch, study: Study) -> Ranking:
    """The ranking that makes the plan of a search: its counts, in the order that it searched in.

    It reads the runs of the search where newer ones of its corpora hide them.
    """
    by_corpus, spread = search.spec.ranking, SpreadSpec(schedule_file=search.path)
    by_run = by_corpus.model_copy(update={"corpora": (), "runs": search.runs})
    for ranking_spec in dict.fromkeys((by_corpus, by_run)):
        spec = search.spec.model_copy(update={"ranking": ranking_spec, "spread": spread})
        try:
            ranking = study.ranking(spec)
        except UserError:
            continue  # the run is not here
        if order_digest(ranking.table) == search.order:
            return ranking
    raise PlanError(
        f"The search {search.search_id} used an order by {search.criterion} that no statistics of "
        f"{study.model.name} here reproduce, perhaps because it was calibrated again since. Its "
        f"counts still work with the order of any criterion: `moeprune plan --schedule-file "
        f"{search.path.name}`."
    )


@dataclass(frozen=True, eq=False)
class Study:
    """A model, its statistics, and what was measured of it.

    Values come by name (`ranking`, `plan`, `losses`) and need statistics that are there, but for
    norms of neurons, which take seconds. The verbs `rank` and `make` yield progress, and measure
    weights that were not measured yet.
    """

    model: MoEModel
    store: StatsStore  # the statistics; records lie beside them
    place: Place  # how command lines name both
    cached: Cache = uncached  # calls functions; on pages it keeps their results

    @classmethod
    def of(cls, request: ModelRequest, model: MoEModel, store: StatsStore) -> Study:
        """The study that a request is about."""
        return cls(model, store, Place.of(request))

    def now(self) -> Study:
        """The same with the files of this moment, which are listed once, for one run of a page."""
        study = replace(self, store=self.store.snapshot())
        study.opened(EvaluationStore)
        study.opened(SensitivityStore)
        study.opened(RepairStore)
        return study

    @property
    def cache_key(self) -> tuple[object, ...]:
        """The model, the statistics as they are now, and how command lines name both."""
        return self.model.identity, self.store.cache_key, self.place.cache_key

    def request(self, spec: PlanSpec) -> SpecRequest:
        """A plan of the model, as a command asks for it."""
        return self.place.request(spec)

    # Statistics.

    def runs(self, criterion: Criterion | None = None) -> dict[str, Run]:
        """The run of each calibrated corpus that a criterion reads."""
        return run_by_corpus(self.store.of_model(self.model.identity, "routed"), criterion)

    def stats_of(self, run: Run) -> ExpertStats:
        """Statistics of a calibration run."""
        return self.cached(load_expert_stats, run)

    @property
    def weight_run(self) -> Run | None:
        """The model's weight statistics, if there are any."""
        return next(iter(self.store.of_model(self.model.identity, "weights")), None)

    @property
    def weight_stats(self) -> WeightStats | None:
        """Statistics of the model's weights, if they were measured."""
        return self.cached(load_weight_stats, run) if (run := self.weight_run) else None

    # Rankings.

    def ranking(self, spec: PlanSpec) -> Ranking:
        """What a spec ranks, with the curves of its order if its schedule reads them."""
        if spec.by_neuron:
            return self.measured(replace(self.scores(spec), spec=spec))
        return self.measured(self.cached(shared, self._experts(spec)))

    def rank(
        self, spec: PlanSpec, parts: Sequence[Part] = ()
    ) -> Generator[Progress, None, Ranking]:
        """The ranking of a spec; `parts` are runs to read instead of those that the spec names."""
        if not spec.by_neuron:
            yield from weights_measured(spec.ranking.rule, self.model, self.store)
            return self.measured(self._experts(spec, parts))
        if parts:
            choice = chosen_neurons(parts)
        else:
            choice = yield from scores_of_neurons(spec.ranking, self.model, self.store)
        return self.measured(Ranking(self.model, spec, choice, self.place))

    def _experts(self, spec: PlanSpec, parts: Sequence[Part] = ()) -> Ranking:
        """Experts by statistics that must be there."""
        ranked_by, where = spec.ranking, (self.store, self.model)
        criterion, runs, tokens = ranked_by.rule, ranked_by.runs, None
        corpora = [parse_corpus_weight(text) for text in ranked_by.corpora]
        routed = criterion.source == "routed"
        if parts:
            tokens = routed_choice(parts)
            choice = tokens if routed else self.cached(choose_stats, criterion, *where)
        elif spec.reads_text and not routed:
            # The criterion reads no corpora, so a corpus or a run is for the schedule or limits.
            tokens = self.cached(choose_stats, CRITERIA[FREQUENCY], *where, corpora, runs)
            choice = self.cached(choose_stats, criterion, *where)
        else:
            choice = self.cached(choose_stats, criterion, *where, corpora, runs)
            tokens = choice if isinstance(choice.stats, ExpertStats) else None
        return Ranking(self.model, spec, choice, self.place, tokens)

    def scores(self, spec: PlanSpec) -> Ranking:
        """The saliency of every neuron, one value for all budgets, scopes and limits of a spec."""
        bare = PlanSpec(ranking=spec.ranking, budget=BudgetSpec(sparsity="0"))
        choice: Choice[Any] = self.cached(neuron_choice, spec.ranking, self.model, self.store)
        return self.cached(shared, Ranking(self.model, bare, choice, self.place))

    def neurons(self, spec: PlanSpec, scope: NeuronScope) -> Units:
        """The neurons that can go under the limits of a spec, with the pools of a scope."""
        spread = SpreadSpec(neuron_scope=str(scope))
        # Of the budget, processes that serve it read how widths are rounded.
        budget = BudgetSpec()
        if spec.parallel:
            budget = BudgetSpec(width_multiple_of=spec.budget.width_multiple_of)
        free = spec.model_copy(update={"budget": budget, "spread": spread})
        return self.cached(neuron_units_of, self.scores(spec), free)

    def ranking_of_search(self, search: KnownSearch) -> Ranking:
        """The ranking that makes the plan of a search: its counts, in its order."""
        return self.cached(ranking_of_search, search, self)

    def measured(self, ranking: Ranking) -> Ranking:
        """The ranking, with curves if the schedule of its spec reads them."""
        return self.with_curves(ranking) if ranking.spec.spread.is_measured else ranking

    def with_curves(self, ranking: Ranking) -> Ranking:
        """The ranking with the curves that the measured schedule reads, if there are any."""
        curves = self.cached(find_sensitivity, ranking, ranking.spec, self.curves)
        return self.cached(shared, replace(ranking, sensitivity=curves))

    # Plans.

    def plan(self, spec: PlanSpec) -> PruningPlan:
        """What a spec keeps."""
        return self._keeping_all(spec) if spec.keeps_all else self.plan_of(self.ranking(spec))

    def plan_of(self, ranking: Ranking) -> PruningPlan:
        """What the spec of a ranking keeps."""
        spec = ranking.spec
        units = (self.neurons(spec, spec.spread.scope),) if spec.by_neuron else ()
        return self._selecting(self.cached(make_plan, ranking, spec, *units), spec)

    def _keeping_all(self, spec: PlanSpec) -> PruningPlan:
        whole = keep_all(self.model)
        made = replace(whole.provenance, spec=recorded(spec))
        return self._selecting(replace(whole, provenance=made), spec)

    def _selecting(self, plan: PruningPlan, spec: PlanSpec) -> PruningPlan:
        """The plan with the experts per token of a mean, if its spec has one."""
        if spec.budget.mean_top_k is None:
            return plan
        return self.cached(with_mean_top_k, plan, self.model, spec, self.curves, self.place)

    def make(
        self, spec: PlanSpec, parts: Sequence[Part] = ()
    ) -> Generator[Progress, None, tuple[PruningPlan, Ranking | None]]:
        """The plan of a spec with all notes, and its ranking; None if a file names what stays."""
        if spec.spread.full_file:
            plan = self._selecting(plan_of_file(spec, self.model), spec)
            odd = source_notes(self.model, plan.kept)
            return replace(plan, notes=(*plan.notes, *odd)), None
        if spec.keeps_all:
            return self._keeping_all(spec), None
        ranking = yield from self.rank(spec, parts)
        plan = make_plan(ranking, spec)
        if not spec.by_neuron:
            plan = with_further_notes(plan, ranking, spec)
        plan = self._selecting(plan, spec)
        odd = source_notes(self.model, plan.kept)
        limits = spec.constraints_for(self.model)
        over = parallel_note(spec.parallel, limits, self.model, by_neuron=spec.by_neuron)
        notes = (*plan.notes, over, super_note(plan, self.model, self.store), *odd)
        return replace(plan, notes=tuple(filter(None, notes))), ranking

    def budget(self, spec: PlanSpec, *, by_hand: bool = False) -> tuple[Units, Budget]:
        """The experts that can go, and how many do; counts by hand need not be even."""
        if spec.limits.keep_super:
            spec = self.ranking(spec).settled(spec)
        if by_hand and spec.budget.sparsity:
            units = expert_units(self.model.layers, spec.constraints_for(self.model))
            return units, sparsity_budget(units, spec.budget.sparsity, even=False)
        units = experts_of(spec, self.model)
        return units, budget_of(
            spec, units, self.model, file_evidence(spec.spread.schedule_file, self.model.layers)
        )

    def sizes(self, plan: PruningPlan) -> SizeReport:
        """Bytes, parameters and FLOPs before and after a plan."""
        return self.cached(size_report, self.model, plan)

    # What was measured.

    @cached_property
    def _opened(self) -> dict[type[Any], Any]:
        return {}

    def opened(self, kind: type[Store]) -> Store:
        """The store of one kind of records; caches know its files as they are at the first call."""
        if kind not in self._opened:
            self._opened[kind] = kind(self.store.directories).snapshot(self.model.identity)
        store: Store = self._opened[kind]
        return store

    def records(
        self, kind: type[RecordStore[Kept]]
    ) -> tuple[tuple[Kept, ...], tuple[StatsError, ...]]:
        """The records of the model in a store of this kind, and why others cannot be read."""
        return self.cached(readable_records, self.opened(kind), self.model.identity)

    @property
    def evaluations(self) -> EvaluationStore:
        """Evaluations of plans."""
        return self.opened(EvaluationStore)

    @property
    def curves(self) -> SensitivityStore:
        """Curves of layers."""
        return self.opened(SensitivityStore)

    @cached_property
    def searches(self) -> tuple[KnownSearch, ...]:
        """The searches of the model."""
        store = SearchStore(self.store.directories)
        return tuple(store.of_model(self.model, read=lambda path: self.cached(read_known, path)))

    @cached_property
    def losses(self) -> tuple[PlanLoss, ...]:
        """The loss of every evaluated plan."""
        return self.cached(stored_losses, self.evaluations, self.model.identity)

    @cached_property
    def measured_granularities(self) -> frozenset[str]:
        """The granularities of which any curves were measured."""
        if self.curves.is_empty:
            return frozenset()
        records, _ = self.records(SensitivityStore)
        return frozenset(str(record.order["granularity"]) for record in records)

    def order(self, ranking: Ranking) -> Order:
        """The order in which layers lose experts or neurons."""
        free = ranking.without_budget
        return self.cached(order_of, free, free.spec)

    def added_losses(self, ranking: Ranking) -> Sensitivity | None:
        """Curves of the loss increase in the order of a ranking, on every measured corpus."""
        if ranking.spec.ranking.granularity not in self.measured_granularities:
            return None
        free = ranking.without_budget
        spread = free.spec.spread.model_copy(update={"cost": "nll"})
        spec = free.spec.model_copy(update={"spread": spread})
        return self.cached(order_sensitivity, free, spec, self.curves)

    def sum_error(self, ranking: Ranking) -> SumError | None:
        """What curves of a ranking's order predict, and how far they were off; None without any."""
        curves = self.added_losses(ranking)
        if curves is None:
            return None
        return self.cached(sum_error, ranking.without_budget, curves, self.evaluations)

    def predicted(self, plan: PruningPlan, ranking: Ranking) -> PredictedLoss | None:
        """Predicted loss increase of a plan: of its order's curves, or in fewer bits a sum.

        Curves predict none of repaired plans; sums need what the plan loses in its own bits.
        """
        if plan.named_bits:
            return self.cached(predicted_in_bits, plan, self.model, self.evaluations)
        if plan.repair or (error := self.sum_error(ranking)) is None:
            return None
        return self.cached(predicted_loss, self.order(ranking), plan, self.model, error)
