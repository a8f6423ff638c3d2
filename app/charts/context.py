"""The context of charts: the user's choices and the data derived from them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Final, ParamSpec, Protocol, TypeVar

from analysis.corpora import name_among
from analysis.criteria import Criterion, get_criterion
from analysis.errors import PlanError, StatsError, UserError
from analysis.model import MoEModel
from analysis.ranking.compare import Comparison
from analysis.sparsity import num_removed, parse_sparsity
from analysis.stats.choose import (
    choose_stats,
    corpus_weight_text,
    notes_on_others,
    parse_corpus_weight,
    run_by_corpus,
)
from analysis.stats.store import Run, StatsStore, load_expert_stats
from analysis.stats.tables import ExpertStats, Gate
from app.charts.chart import made_by
from app.charts.choices import USUAL_PATHS, USUAL_RESULTS, PathChoice, ResultChoice
from app.charts.neuron_cut import neuron_request, ranking_of
from app.tables.ranked import Ranked, rank
from pruning.evaluate.store import readable_records
from pruning.planning.choice import PlanChoice, corpora_words, scopes_of
from pruning.planning.comparing import CompareRequest, compare_selections
from pruning.planning.make import CurrentPlan
from pruning.planning.measured import (
    Order,
    PredictedLoss,
    find_sensitivity,
    order_of,
    order_sensitivity,
    predicted_loss,
    without_budget,
)
from pruning.planning.ranking import Selection, criterion_badge, select
from pruning.requests.plan import PlanRequest
from pruning.search.store import KnownSearch, SearchStore, read_known
from pruning.sensitivity.curves import Sensitivity
from pruning.sensitivity.record import SensitivityStore

BLEND: Final = "(blend)"  # name of the blend of all corpora; no file has it
# Shown beside the current criterion: the simplest, and the least corpus-dependent.
CURVE_BESIDE: Final = ("frequency", "man")
NO_PLAN: Final = PlanChoice()
RANKS_NOTHING: Final = "The variant (1, 0, 0) ranks nothing; choose other exponents."
P = ParamSpec("P")
T = TypeVar("T")


class Keep(Protocol):
    """Calls a function, or returns its cached result for equal arguments."""

    def __call__(self, function: Callable[P, T], /, *args: P.args, **named: P.kwargs) -> T:
        """The result of the function."""


def call(function: Callable[P, T], /, *args: P.args, **named: P.kwargs) -> T:
    """Call a function without a cache, as commands do."""
    return function(*args, **named)


def itself(selection: Selection) -> Selection:
    """A selection; kept, so that equal selections share their computed values."""
    return selection


@dataclass(frozen=True, eq=False)
class Context:
    """The user's choices; derived data is computed on first use."""

    model: MoEModel
    store: StatsStore  # the statistics
    criterion: Criterion | None  # None if the exponents rank nothing
    baseline: Criterion
    corpora: tuple[str, ...] = ()  # calibration corpora, in the form of --corpus
    gate: Gate = "applied"
    sparsity: str = "0%"  # in the form of --sparsity
    named: str = ""  # MODEL of command lines
    stats_dir: Path | None = None  # --stats-dir of command lines
    recipes: CompareRequest | None = None  # both recipes, if they differ in more than the criterion
    plan: PlanChoice = NO_PLAN  # granularity and schedule
    shown: CurrentPlan | None = None  # the plan on screen: of a file, a search or the controls
    search: KnownSearch | None = None  # the search on screen; None: that of the recipe
    keep: Keep = call  # calls functions; that of the dashboard caches
    expert: tuple[int, int] | None = None  # the pinned layer and expert
    beside: tuple[str, ...] | None = None  # further criteria by tokens; None: CURVE_BESIDE
    # Model name -> runs, for charts of exponents; None: this model only.
    models: Mapping[str, Mapping[str, Run]] | None = None
    paths: PathChoice = USUAL_PATHS
    results: ResultChoice = USUAL_RESULTS
    removed: float | None = None  # sparsity of the chart of equal sizes

    # The choices.

    @cached_property
    def both(self) -> CompareRequest:
        """Both recipes."""
        if self.recipes is not None:
            return self.recipes
        # Charts of overlap need a gate convention for any criterion.
        gate = {"gate": self.gate}
        a, b = (
            self.request_by(each).model_copy(update=gate)
            for each in (self.ranking_criterion, self.baseline)
        )
        return CompareRequest(a, b)

    @property
    def request(self) -> PlanRequest:
        """The recipe."""
        return self.both.a

    @property
    def ranking_criterion(self) -> Criterion:
        """The criterion of the recipe; an error if the exponents rank nothing."""
        if self.criterion is None:
            raise PlanError(RANKS_NOTHING)
        return self.criterion

    @property
    def fraction(self) -> Fraction:
        """The sparsity as an exact number."""
        return parse_sparsity(self.sparsity)

    @property
    def sparsity_percent(self) -> int:
        """The sparsity in percent, as on the slider."""
        return int(100 * self.fraction)

    def removed_at(self, sparsity: Fraction) -> int:
        """Number of experts that this sparsity of every layer prunes."""
        return sum(num_removed(layer.num_experts, sparsity) for layer in self.model.layers)

    @property
    def corpus(self) -> str:
        """The calibration corpus, or BLEND; empty if there is none."""
        if not self.corpora:
            return ""
        names = {corpus_weight_text(name): name for name in self.runs}
        return names.get(self.corpora[0], BLEND)

    @property
    def weights(self) -> dict[str, float]:
        """Weight of every calibrated corpus in the ranking."""
        given = [parse_corpus_weight(text) for text in self.corpora]
        named = {name_among(self.runs, each.corpus): each.weight for each in given}
        return {corpus: named.get(corpus, 0.0) for corpus in self.runs}

    @property
    def is_plain(self) -> bool:
        """Whether two recipes hold all choices except schedule and scope."""
        try:
            _ = self.both
        except UserError:  # a criterion of neurons only
            return False
        return self.plan.is_plain

    @property
    def has_usual_scope(self) -> bool:
        """Whether the scope is the criterion's widest, the default of commands."""
        widest = scopes_of(self.ranking_criterion.name)[0] if self.plan.by_neuron else None
        return widest is None or self.plan.scope == widest

    def request_by(self, criterion: Criterion) -> PlanRequest:
        """The recipe with another criterion."""
        return PlanRequest(
            model=self.named,
            criterion=criterion.name,
            corpora=self.corpora if criterion.source == "routed" else (),
            gate=self.gate if criterion.uses_gate else "applied",
            sparsity=self.sparsity,
            stats_dir=self.stats_dir,
        )

    def on(self, corpora: tuple[str, ...]) -> "Context":
        """The context with other calibration corpora."""
        return replace(self, corpora=corpora, recipes=None)

    def source_of(self, criterion: Criterion) -> str:
        """What a criterion reads, in a few words."""
        routed = criterion.source == "routed"
        return corpora_words(self.corpora) if routed else criterion_badge(criterion)

    # Statistics.

    @cached_property
    def runs(self) -> dict[str, Run]:
        """The run of each calibrated corpus."""
        runs = self.store.of_model(self.model.identity, "routed")
        return run_by_corpus(runs, self.criterion)

    @property
    def run_notes(self) -> tuple[str, ...]:
        """A line for each corpus with several runs."""
        every = self.store.of_model(self.model.identity, "routed")
        return notes_on_others(self.runs.values(), every, self.criterion)

    def stats_of(self, run: Run) -> ExpertStats:
        """Statistics of a calibration run."""
        return self.keep(load_expert_stats, run)

    def selection(self, request: PlanRequest) -> Selection:
        """A recipe with its statistics, and its sensitivity if the schedule needs it."""
        found = select(
            request, self.model, self.store, choose=lambda *args: self.keep(choose_stats, *args)
        )
        kept = self.keep(itself, found)
        if not request.is_measured:
            return kept
        known = SensitivityStore(self.store.directories)
        measured = self.keep(find_sensitivity, kept, request, known)
        return self.keep(itself, replace(kept, sensitivity=measured))

    @cached_property
    def first(self) -> Selection:
        """The recipe with its statistics."""
        return self.selection(self.both.a)

    @property
    def ranking(self) -> Selection:
        """The recipe of the plan on screen, if there is one."""
        if self.shown and self.shown.selection:
            return self.shown.selection
        return self.neurons if self.plan.by_neuron else self.first

    @cached_property
    def neurons(self) -> Selection:
        """The recipe of neurons with its statistics."""
        asked = neuron_request(self)
        return replace(ranking_of(self, asked), request=asked)

    @cached_property
    def order(self) -> Order:
        """The order in which layers lose experts or neurons."""
        asked = without_budget(self.ranking)
        return self.keep(order_of, asked, asked.request)

    @cached_property
    def has_sensitivity(self) -> bool:
        """Whether any sensitivity of this granularity was measured."""
        known = SensitivityStore(self.store.directories)
        if known.is_empty:
            return False
        records, _ = self.keep(readable_records, known, self.model.identity)
        return any(each.order["granularity"] == self.plan.granularity for each in records)

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
        known, free = SensitivityStore(self.store.directories), without_budget(ranking)
        asked = free.request.model_copy(update={"cost": "nll"})
        return self.keep(order_sensitivity, free, asked, known)

    @cached_property
    def predicted(self) -> PredictedLoss | None:
        """Predicted loss increase of the plan, if its order was measured."""
        if self.shown is None or self.sensitivity is None:
            return None
        plan, found = self.shown.plan, self.sensitivity
        return self.keep(predicted_loss, self.order, plan, self.model, found)

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
        mine = self.corpora_stats
        if not self.models:
            return {self.model.name: mine}
        return {
            name: {corpus: self.stats_of(run) for corpus, run in runs.items()}
            for name, runs in self.models.items()
        }

    @property
    def models_said(self) -> tuple[str, ...]:
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
        return self.keep(rank, criterion, stats, selection.request.gate)

    @cached_property
    def comparison(self) -> Comparison:
        """The recipe (A) compared with the second (B)."""
        return compare_selections(self.first, self.second)

    @cached_property
    def known_searches(self) -> tuple[KnownSearch, ...]:
        """The searches of the model."""
        store = SearchStore(self.store.directories)
        return tuple(store.of_model(self.model, read=lambda path: self.keep(read_known, path)))

    # Checks before drawing.

    def routed_criterion(self) -> Criterion:
        """The criterion, if it reads corpora."""
        criterion = self.ranking_criterion
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
            return self.ranking_criterion.label
        made = self.shown.plan.provenance
        return self.shown.file or ", ".join(filter(None, (made.criterion, made.schedule)))

    @property
    def has_usual_plan(self) -> bool:
        """Whether the plan is the default of commands: uniform, without constraints."""
        usual = self.plan == NO_PLAN or self.plan.by_neuron
        return usual and not (self.shown and self.shown.file)

    def about_both(self) -> str:
        """Provenance line of a chart of both recipes."""
        a, b = self.names
        runs = [run.manifest.run_id for run in (*self.first.choice.runs, *self.second.choice.runs)]
        return made_by(self.head, f"A: {a}", f"B: {b}", ", ".join(dict.fromkeys(runs)))

    @property
    def names(self) -> tuple[str, str]:
        """Both recipes in a few words."""
        return _in_words(self.first), _in_words(self.second)


def _in_words(selection: Selection) -> str:
    source = corpora_words(selection.choice.corpora) or criterion_badge(selection.criterion)
    gate = ", renormalized" if selection.request.gate != "applied" else ""
    return f"{selection.criterion.label}, {source}{gate}, {selection.request.sparsity}"


def context_of(recipes: CompareRequest, model: MoEModel, store: StatsStore) -> Context:
    """The context of two recipes."""
    a, b = recipes.a, recipes.b
    return Context(
        model,
        store,
        get_criterion(a.criterion),
        get_criterion(b.criterion),
        corpora=a.corpora,
        gate=a.gate,
        sparsity=a.sparsity,
        named=a.model,
        stats_dir=a.stats_dir,
        recipes=recipes,
    )
