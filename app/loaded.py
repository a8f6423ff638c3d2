"""What charts and pages are drawn from: a model, a person's choices, and the data that follow."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any, ParamSpec, Protocol, TypeVar

from analysis.cache_keys import most_results
from analysis.corpora import name_among
from analysis.criteria import Criterion
from analysis.drain import drain
from analysis.errors import PlanError, StatsError, UserError
from analysis.files.own_package import tool_version
from analysis.model.moe_model import MoEModel
from analysis.numbers.sparsity import as_percent, num_removed, parse_sparsity
from analysis.ranking.choose import (
    choose_stats,
    corpus_weight_text,
    notes_on_others,
    parse_corpus_weight,
    run_by_corpus,
)
from analysis.ranking.compare import Comparison
from analysis.stats.store import Run, StatsStore, load_expert_stats, load_weight_stats
from analysis.stats.tables import ExpertStats, Gate, WeightStats
from app.choices import BLEND, SAME_SCORE, Choices
from app.tables.ranked import Ranked, rank
from pruning.measures.curves import Sensitivity
from pruning.measures.store import readable_records
from pruning.measures.sum_error import SumError
from pruning.plan.plan import NEURON_GRANULARITY, PruningPlan
from pruning.planning.choice import corpora_words, scopes_of
from pruning.planning.comparing import (
    SpecPair,
    decision,
    pair_of,
    second_spec,
    with_counts_of,
)
from pruning.planning.make import CurrentPlan, file_evidence, make_plan, spending_of
from pruning.planning.measured import (
    Order,
    find_sensitivity,
    order_of,
    order_sensitivity,
    without_budget,
)
from pruning.planning.predicted import (
    PredictedLoss,
    predicted_in_bits,
    predicted_loss,
    sum_error,
)
from pruning.planning.ranking import Selection, criterion_badge, select, select_measured
from pruning.records.evaluation import EvaluationStore
from pruning.records.sensitivity import SensitivityStore
from pruning.requests.plan import SpecRequest
from pruning.requests.ranking import DrawRequest, SecondRequest
from pruning.search.store import KnownSearch, SearchStore, read_known
from pruning.spec.spec import BudgetSpec, PlanSpec, spec_of

P = ParamSpec("P")
T = TypeVar("T")


class Keep(Protocol):
    """Calls a function, or returns its cached result for equal arguments."""

    def __call__(self, function: Callable[P, T], /, *args: P.args, **named: P.kwargs) -> T:
        """The result of the function."""


def call(function: Callable[P, T], /, *args: P.args, **named: P.kwargs) -> T:
    """Call a function without a cache, as commands do."""
    return function(*args, **named)


@most_results(32)
def shared_selection(selection: Selection) -> Selection:
    """A selection; kept, so that equal selections share their computed values."""
    return selection


@most_results(8)
def rank_for(request: SpecRequest, model: MoEModel, store: StatsStore) -> Selection:
    """The scores of every neuron; measures weights without statistics."""
    return drain(select_measured(request, model, store))


def made_by(*facts: str) -> str:
    """Provenance line: the facts, the version of this program, the date."""
    today = datetime.now(UTC).date().isoformat()
    return " | ".join([*filter(None, facts), f"moe-prune-studio {tool_version()}", today])


@dataclass(frozen=True, eq=False)
class Loaded:
    """A model, what a person chose, and what follows from that, computed on first use."""

    model: MoEModel
    store: StatsStore  # the statistics
    choices: Choices
    named: str = ""  # MODEL of command lines
    stats_dir: Path | None = None  # --stats-dir of command lines
    shown: CurrentPlan | None = None  # the plan on screen: of a file, a search or the controls
    search: KnownSearch | None = None  # the search on screen; None: that of the recipe
    keep: Keep = call  # calls functions; that of the dashboard caches
    # Model name -> runs, for charts of exponents; None: this model only.
    models: Mapping[str, Mapping[str, Run]] | None = None

    def choosing(self, **values: Any) -> "Loaded":
        """The same with other values of these choices."""
        return replace(self, choices=replace(self.choices, **values))

    # Plans.

    @cached_property
    def both(self) -> SpecPair:
        """The plan, and the one that it is compared with."""
        pair = pair_of(self.choices.second or self.second_by(), self.request.plan)
        if pair.a.plan.by_neuron or not pair.a.plan.spread.is_measured:
            return pair
        try:
            return with_counts_of(self.plan_by(self.selection(pair.a)), pair)
        except PlanError:  # its order has no curves yet
            return pair

    def second_by(self, **values: Any) -> SecondRequest:
        """The plan by the baseline, from the corpora and gate weights that were chosen."""
        baseline = self.choices.baseline
        own = {
            "with_criterion": baseline.name,
            "with_corpora": self.choices.corpora if baseline.source == "routed" else (),
            "with_gate": self.choices.gate,
        }
        return SecondRequest(model=self.named, stats_dir=self.stats_dir, **own | values)

    @property
    def request(self) -> SpecRequest:
        """The plan; before there is one, without counts by hand and searches."""
        if self.shown and self.shown.selection:
            return self.shown.selection.request
        if self.choices.criterion is None:
            raise PlanError(SAME_SCORE)
        return self.request_for(self.choices.spec)

    def request_for(self, spec: PlanSpec) -> SpecRequest:
        """A plan of the model, as a command asks for it."""
        return SpecRequest(model=self.named, plan=spec, stats_dir=self.stats_dir)

    @cached_property
    def sparsity(self) -> str:
        """The share of experts, neurons, parameters or bytes that goes."""
        spec, budget = self.choices.spec, self.choices.spec.budget
        share = budget.sparsity or budget.params_share or budget.shrink
        if share and (budget.sparsity or spec.by_neuron):
            return share
        if spec.by_neuron:
            return "0%"  # a number or a size, whose share the chart of the plan shows
        spending = spending_of(spec, self.model, file_evidence(spec, self.model))
        return as_percent(spending.budget.total, self.model.num_experts)

    @property
    def fraction(self) -> Fraction:
        """The sparsity as an exact number."""
        return parse_sparsity(self.sparsity)

    @property
    def percent(self) -> int:
        """The sparsity in percent, as on the slider."""
        return int(100 * self.fraction)

    def removed_at(self, sparsity: Fraction) -> int:
        """Number of experts that this sparsity of every layer prunes."""
        return sum(num_removed(layer.num_experts, sparsity) for layer in self.model.layers)

    @property
    def corpus(self) -> str:
        """The calibration corpus, or BLEND; empty if there is none."""
        if not self.choices.corpora:
            return ""
        if len(self.choices.corpora) > 1:
            return BLEND
        names = {corpus_weight_text(name): name for name in self.runs}
        return names.get(self.choices.corpora[0], BLEND)

    @property
    def weights(self) -> dict[str, float]:
        """Weight of every calibrated corpus in the ranking."""
        parts = [parse_corpus_weight(text) for text in self.choices.corpora]
        weights = {name_among(self.runs, part.corpus): part.weight for part in parts}
        return {corpus: weights.get(corpus, 0.0) for corpus in self.runs}

    def request_by(self, criterion: Criterion, gate: Gate | None = None) -> SpecRequest:
        """The plan by another criterion, without schedule and limits."""
        spec = spec_of(
            criterion=criterion.name,
            corpora=self.choices.corpora if criterion.source == "routed" else (),
            gate=gate or (self.choices.gate if criterion.uses_gate else "applied"),
            sparsity=self.sparsity,
        )
        return self.request_for(spec)

    def command_for(self, view: str, options: Sequence[str] = ()) -> str:
        """The command that draws a chart of this plan."""
        file = ["--plan", self.shown.file] if self.shown and self.shown.file else []
        return self.both.plot_command(view, f"{view}.svg", [*options, *file])

    def on(self, corpora: tuple[str, ...]) -> "Loaded":
        """The same on other calibration corpora."""
        spec = self.choices.spec
        if spec.reads_text:
            spec = spec.changed(corpora=corpora)
        return self.choosing(spec=spec, corpora=corpora, second=None)

    def of_neurons(self) -> "Loaded":
        """The same with neurons to remove, in the widest scope if it removes experts."""
        if self.choices.spec.by_neuron:
            return self
        ranking = self.request.plan.ranking
        spec = spec_of(
            criterion=ranking.criterion,
            corpora=ranking.corpora,
            granularity=NEURON_GRANULARITY,
            sparsity=self.sparsity,
            neuron_scope=str(scopes_of(ranking.criterion)[0]),
        )
        return self.choosing(spec=spec)

    @property
    def neuron_request(self) -> SpecRequest:
        """The requested plan of neurons."""
        return self.request_for(self.of_neurons().choices.spec)

    def source_of(self, criterion: Criterion) -> str:
        """What a criterion reads, in a few words."""
        routed = criterion.source == "routed"
        return corpora_words(self.choices.corpora) if routed else criterion_badge(criterion)

    # Statistics.

    @cached_property
    def runs(self) -> dict[str, Run]:
        """The run of each calibrated corpus."""
        runs = self.store.of_model(self.model.identity, "routed")
        return run_by_corpus(runs, self.choices.criterion)

    @property
    def run_notes(self) -> tuple[str, ...]:
        """A line for each corpus with several runs."""
        every = self.store.of_model(self.model.identity, "routed")
        return notes_on_others(self.runs.values(), every, self.choices.criterion)

    def stats_of(self, run: Run) -> ExpertStats:
        """Statistics of a calibration run."""
        return self.keep(load_expert_stats, run)

    @property
    def weight_run(self) -> Run | None:
        """The model's weight statistics, if there are any."""
        return next(iter(self.store.of_model(self.model.identity, "weights")), None)

    @property
    def weight_stats(self) -> WeightStats | None:
        """Statistics of the model's weights, if they were measured."""
        return self.keep(load_weight_stats, run) if (run := self.weight_run) else None

    def selection(self, request: SpecRequest) -> Selection:
        """A recipe with its statistics, and its sensitivity if the schedule needs it."""
        selection = select(
            request, self.model, self.store, choose=lambda *args: self.keep(choose_stats, *args)
        )
        kept = self.keep(shared_selection, selection)
        if not request.plan.spread.is_measured:
            return kept
        curves = SensitivityStore(self.store.directories)
        sensitivity = self.keep(find_sensitivity, kept, request.plan, curves)
        return self.keep(shared_selection, replace(kept, sensitivity=sensitivity))

    @cached_property
    def first(self) -> Selection:
        """The recipe with its statistics."""
        request = self.both.a
        if request.plan.by_neuron:
            return replace(self.neuron_ranking(request), request=request)
        return self.selection(request)

    @property
    def ranking(self) -> Selection:
        """The recipe of the plan on screen, if there is one."""
        if self.shown and self.shown.selection:
            return self.shown.selection
        return self.first

    @cached_property
    def neurons(self) -> Selection:
        """The recipe of neurons with its statistics."""
        request = self.neuron_request
        return replace(self.neuron_ranking(request), request=request)

    def neuron_ranking(self, request: SpecRequest) -> Selection:
        """The scores of every neuron by the criterion and corpora of a request; see `rank_for`."""
        bare = PlanSpec(ranking=request.plan.ranking, budget=BudgetSpec(sparsity="0"))
        plain = SpecRequest(model=request.model, plan=bare)
        return self.keep(rank_for, plain, self.model, self.store)

    @cached_property
    def order(self) -> Order:
        """The order in which layers lose experts or neurons."""
        ranking = without_budget(self.ranking)
        return self.keep(order_of, ranking, ranking.spec)

    @cached_property
    def has_sensitivity(self) -> bool:
        """Whether any sensitivity of this granularity was measured."""
        curves = SensitivityStore(self.store.directories)
        if curves.is_empty:
            return False
        records, _ = self.keep(readable_records, curves, self.model.identity)
        granularity = self.choices.spec.ranking.granularity
        return any(each.order["granularity"] == granularity for each in records)

    @cached_property
    def sensitivity(self) -> Sensitivity | None:
        """Curves of the loss increase in the plan's order, on every measured corpus."""
        try:
            return self.added_losses(self.ranking) if self.has_sensitivity else None
        except UserError:  # beside a plan from a file, the recipe may lack statistics
            return None

    def added_losses(self, ranking: Selection) -> Sensitivity | None:
        """Curves of the loss increase in the order of a recipe, on every measured corpus."""
        if not self.has_sensitivity:
            return None
        curves, free = SensitivityStore(self.store.directories), without_budget(ranking)
        spread = free.spec.spread.model_copy(update={"cost": "nll"})
        spec = free.spec.model_copy(update={"spread": spread})
        return self.keep(order_sensitivity, free, spec, curves)

    def sum_error(self, ranking: Selection) -> SumError | None:
        """What curves of a recipe's order predict, with how far they were off; None without any."""
        curves = self.added_losses(ranking)
        if curves is None:
            return None
        stores = (
            EvaluationStore(self.store.directories),
            SensitivityStore(self.store.directories),
        )
        free = without_budget(ranking)
        return self.keep(sum_error, free, curves, *stores, self.known_searches)

    @cached_property
    def predicted(self) -> PredictedLoss | None:
        """Predicted loss increase of the plan: of its order's curves, or in fewer bits a sum.

        Curves predict none of repaired plans; sums need what the plan loses in its own bits.
        """
        if self.shown is None:
            return None
        if self.shown.plan.bits:
            store = EvaluationStore(self.store.directories)
            return self.keep(predicted_in_bits, self.shown.plan, self.model, store)
        if self.shown.plan.repair or self.sensitivity is None:
            return None
        if (error := self.sum_error(self.ranking)) is None:
            return None
        return self.keep(predicted_loss, self.order, self.shown.plan, self.model, error)

    @cached_property
    def second(self) -> Selection:
        """The compared recipe with its statistics."""
        return self.selection(self.both.b)

    @cached_property
    def calibrated(self) -> dict[str, ExpertStats]:
        """The statistics of each corpus."""
        return {corpus: self.stats_of(run) for corpus, run in self.runs.items()}

    @cached_property
    def models_stats(self) -> dict[str, Mapping[str, ExpertStats]]:
        """Model name -> statistics by corpus, of the compared models."""
        stats = self.corpora_stats
        if not self.models:
            return {self.model.name: stats}
        return {
            name: {corpus: self.stats_of(run) for corpus, run in runs.items()}
            for name, runs in self.models.items()
        }

    @property
    def models_fact(self) -> tuple[str, ...]:
        """The compared models, for provenance lines; empty if only this one."""
        return (f"models: {', '.join(self.models)}",) if self.models else ()

    @cached_property
    def corpora_stats(self) -> Mapping[str, ExpertStats]:
        """The statistics of each corpus, for charts that compare corpora."""
        if len(self.runs) < 2:
            raise StatsError(
                f"Overlap compares calibrations on different corpora; {self.model.name} has "
                f"{len(self.runs)}. Calibrate on another with `moeprune calibrate` or on the page "
                "Start."
            )
        self.check_removes()
        return self.calibrated

    def ranked(self, selection: Selection) -> Ranked:
        """Scores and saliency of every expert under a recipe."""
        criterion, stats = selection.criterion, selection.choice.stats
        return self.keep(rank, criterion, stats, selection.gate)

    @cached_property
    def comparison(self) -> Comparison:
        """The recipe (A) compared with the second (B)."""
        a = decision(self.first, self.shown_plan)
        return Comparison(a, decision(self.second, self.plan_by(self.second)))

    @property
    def shown_plan(self) -> PruningPlan:
        """The plan on screen; for a command, that of the recipe."""
        return self.shown.plan if self.shown else self.plan_by(self.first)

    def plan_by(self, selection: Selection) -> PruningPlan:
        """The plan of a recipe."""
        return self.keep(make_plan, selection, selection.spec).plan

    @cached_property
    def known_searches(self) -> tuple[KnownSearch, ...]:
        """The searches of the model."""
        store = SearchStore(self.store.directories)
        return tuple(store.of_model(self.model, read=lambda path: self.keep(read_known, path)))

    # Checks before drawing.

    def routed_criterion(self) -> Criterion:
        """The criterion, if it reads corpora."""
        criterion = self.choices.ranking_criterion
        if criterion.source != "routed":
            raise StatsError(
                f"{criterion.label} reads no corpus, so all corpora agree; choose a calibrated "
                "criterion, such as reap."
            )
        return criterion

    def check_removes(self) -> None:
        """Check that the sparsity prunes experts."""
        if not self.removed_at(self.fraction):
            least = 1 / max(layer.num_experts for layer in self.model.layers)
            raise PlanError(
                f"The sparsity {self.sparsity} removes no expert, so there is nothing to "
                f"show; the least that removes one per layer is {least:.4g}."
            )

    # Provenance.

    @property
    def head(self) -> str:
        """The model, for provenance lines."""
        return f"{self.model.name} {self.model.identity[:8]}"

    def about(self, *facts: str) -> str:
        """Provenance line of a chart of all corpora."""
        runs = ", ".join(run.manifest.run_id for run in self.runs.values())
        return made_by(self.head, runs, f"sparsity {self.sparsity}", *facts)

    def about_plan(self) -> str:
        """Origin of the plan, for provenance lines."""
        if self.shown is None:
            return self.choices.ranking_criterion.label
        origin, repair = self.shown.plan.provenance, self.shown.plan.repair
        words = self.shown.file or ", ".join(filter(None, (origin.criterion, origin.schedule)))
        return f"{words}, repaired" if repair else words

    def about_both(self) -> str:
        """Provenance line of a chart of both recipes."""
        a, b = self.names
        runs = [run.manifest.run_id for run in (*self.first.choice.runs, *self.second.choice.runs)]
        return made_by(self.head, f"A: {a}", f"B: {b}", ", ".join(dict.fromkeys(runs)))

    @property
    def names(self) -> tuple[str, str]:
        """Both recipes in a few words."""
        file = self.shown.file if self.shown else ""
        return file or _in_words(self.first), _in_words(self.second)


def _in_words(selection: Selection) -> str:
    source = corpora_words(selection.choice.corpora) or criterion_badge(selection.criterion)
    gate = ", renormalized" if selection.gate != "applied" else ""
    amount = next(iter(selection.spec.budget.amounts.values()), "")
    return f"{selection.criterion.label}, {source}{gate}, {amount}"


def loaded_of(request: DrawRequest, model: MoEModel, store: StatsStore) -> Loaded:
    """What charts of two plans are drawn from."""
    spec, ranking = request.plan, request.plan.ranking
    b = second_spec(spec, request).ranking.rule
    choices = Choices(spec, b, corpora=ranking.corpora, gate=ranking.gate, second=request)
    return Loaded(model, store, choices, named=request.model, stats_dir=request.stats_dir)
