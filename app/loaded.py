"""What charts and pages are drawn from: a model, a person's choices, and the data that follow."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Any

from analysis.corpora.spec import corpus_weight_text, name_among, parse_corpus_weight
from analysis.criteria import Criterion, get_criterion
from analysis.errors import PlanError, StatsError, UserError
from analysis.model.moe_model import MoEModel
from analysis.numbers.sparsity import as_percent, num_removed, parse_sparsity
from analysis.ranking.choose import notes_on_others
from analysis.ranking.compare import Comparison
from analysis.stats.columns import Gate
from analysis.stats.manifest import Run
from analysis.stats.tables import ExpertStats
from app.choices import BLEND, SAME_SCORE, Choices
from app.tables.saliency_grid import SaliencyGrid, rank
from pruning.measures.curves import Sensitivity
from pruning.plan.budget import Budget
from pruning.plan.plan import NEURON_GRANULARITY, PruningPlan
from pruning.plan.units import Units
from pruning.plan.variant_words import tokens_words, variant_words
from pruning.planning.choice import corpora_words, schedule_words, scopes_of
from pruning.planning.comparing import (
    SpecPair,
    decision,
    is_ordered,
    order_asked_of,
    second_spec,
    with_counts_of,
)
from pruning.planning.make import PLAN_FILE, budget_of, experts_of
from pruning.planning.neurons_compared import NeuronComparison, compare_neurons
from pruning.planning.predicted import PredictedLoss
from pruning.planning.ranking import Ranking, criterion_badge
from pruning.records.quality import PlanLoss, RandomLoss, loss_of, random_at
from pruning.records.right_of_plans import in_short
from pruning.requests.plan import SpecRequest
from pruning.requests.ranking import SecondRequest
from pruning.requests.repair import RepairRequest
from pruning.schedules.counts import file_evidence
from pruning.search.store import KnownSearch
from pruning.spec.base import command_line
from pruning.spec.spec import PlanSpec, spec_of
from pruning.study import Study


@dataclass(frozen=True, eq=False)
class CurrentPlan:
    """The plan on screen, one for all pages, and where it comes from."""

    plan: PruningPlan  # complete, for the model on screen
    ranking: Ranking | None = None  # None for a plan from a file
    file: str = ""  # name of that file
    repaired_by: RepairRequest | None = None  # makes its repair; None if it has none, or its file

    @property
    def kept(self) -> dict[int, int]:
        """Layer -> experts kept."""
        return {layer: len(ids) for layer, ids in self.plan.kept.items()}

    @property
    def name(self) -> str:
        """Its name for people: its file, or criterion, corpora, schedule, sparsity; its repair."""
        provenance = self.plan.provenance
        label = get_criterion(provenance.criterion).label if provenance.criterion else ""
        schedule = (
            "by hand"
            if provenance.constraints.get("fixed")
            else schedule_words(provenance.schedule)
        )
        words = (label, corpora_words(provenance.corpora), schedule, provenance.amount)
        name = self.file or ", ".join(filter(None, words))
        repair, changes = self.plan.repair, (self.plan.named_bits, self.plan.per_token)
        if repair is None or not name:
            return name + variant_words("", "", *changes)
        if self.file and self.repaired_by is None:
            fitted = f" (repaired on {tokens_words(repair.tokens)})"
            return name + fitted + variant_words("", "", *changes)
        fitted, ranked = "+".join(repair.corpora), "+".join(provenance.corpora)
        return name + variant_words(fitted, ranked, *changes, tokens=repair.tokens)

    @property
    def own_file(self) -> str:
        """A file that no other plan has, where two are named."""
        return self.file or f"plan-{self.plan.in_own_bits.unrepaired.digest[:8]}.json"

    @property
    def file_name(self) -> str:
        """The file that holds it, or that its commands write."""
        return self.repaired_by.writes if self.repaired_by else self.file or PLAN_FILE

    def plan_command(self, model: str) -> str:
        """The command line that makes the plan, or shows the file that holds it.

        Its repair has another line, see `commands`.
        """
        if self.ranking is not None:
            return self.ranking.place.request(self.ranking.spec).command()
        return command_line("plans", "show", self.file, "--model", model)

    def commands(self, model: str) -> list[str]:
        """The command lines that make the plan and its repair."""
        repairs = []
        if self.repaired_by:
            repairs = [self.repaired_by.command((self.file or PLAN_FILE,))]
        return [self.plan_command(model), *repairs]


@dataclass(frozen=True, eq=False)
class Loaded:
    """A model, what a person chose, and what follows from that, computed on first use."""

    study: Study
    choices: Choices
    shown: CurrentPlan | None = None  # the plan on screen: of a file, a search or the controls
    beside: CurrentPlan | None = None  # a whole plan as the second one; None: it is by the baseline
    search: KnownSearch | None = None  # the search on screen; None: that of the controls
    beside_choices: Choices | None = None  # of the second plan, such as its widths
    # Model name -> runs, for charts of exponents; None: this model only.
    models: Mapping[str, Mapping[str, Run]] | None = None

    def choosing(self, **values: Any) -> "Loaded":
        """The same with other values of these choices."""
        return replace(self, choices=replace(self.choices, **values))

    @property
    def model(self) -> MoEModel:
        """The model."""
        return self.study.model

    # Plans.

    @cached_property
    def both(self) -> SpecPair:
        """The plan, and the one that it is compared with."""
        if self.beside:
            b = self.study.request(self._beside_ranking.spec)
            return SpecPair(self.request, b, self.beside_file)
        a = self.request
        second = second_spec(a.plan, self.choices.second or self.second_by())
        pair = SpecPair(a, a.model_copy(update={"plan": second}))
        if pair.a.plan.by_neuron or not pair.a.plan.spread.is_measured:
            return pair
        try:
            return with_counts_of(self.study.plan(pair.a.plan), pair)
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
        place = self.study.place
        return SecondRequest(model=place.model, stats_dir=place.stats_dir, **own | values)

    @property
    def spec(self) -> PlanSpec:
        """What is asked of the plan; before there is one, without counts by hand and searches."""
        if self.shown and self.shown.ranking:
            return self.shown.ranking.spec
        if self.choices.criterion is None:
            raise PlanError(SAME_SCORE)
        return self.choices.spec

    @property
    def request(self) -> SpecRequest:
        """The plan, as a command asks for it."""
        return self.study.request(self.spec)

    @cached_property
    def sparsity(self) -> str:
        """The share of experts, neurons, parameters or bytes that goes."""
        spec, budget = self.choices.spec, self.choices.spec.budget
        share = budget.sparsity or budget.params_share or budget.shrink
        if share and (budget.sparsity or spec.by_neuron):
            return share
        if spec.by_neuron:
            return "0%"  # a number or a size, whose share the chart of the plan shows
        evidence = file_evidence(spec.spread.schedule_file, self.model.layers)
        removed = budget_of(spec, experts_of(spec, self.model), self.model, evidence)
        return as_percent(removed.total, self.model.num_experts)

    @cached_property
    def budget(self) -> tuple[Units, Budget]:
        """The experts that can go, and how many do, to which counts by hand must sum."""
        return self.study.budget(self.choices.spec, by_hand=bool(self.choices.kept))

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

    def spec_by(self, criterion: Criterion, gate: Gate | None = None) -> PlanSpec:
        """The plan by another criterion, without schedule and limits."""
        return spec_of(
            criterion=criterion.name,
            corpora=self.choices.corpora if criterion.source == "routed" else (),
            gate=gate or (self.choices.gate if criterion.uses_gate else "applied"),
            sparsity=self.sparsity,
        )

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
        ranking = self.spec.ranking
        spec = spec_of(
            criterion=ranking.criterion,
            corpora=ranking.corpora,
            granularity=NEURON_GRANULARITY,
            sparsity=self.sparsity,
            neuron_scope=str(scopes_of(ranking.criterion)[0]),
        )
        return self.choosing(spec=spec)

    @property
    def neuron_spec(self) -> PlanSpec:
        """What is asked of the plan of neurons."""
        return self.of_neurons().choices.spec

    # Statistics.

    @cached_property
    def runs(self) -> dict[str, Run]:
        """The run of each calibrated corpus."""
        return self.study.runs(self.choices.criterion)

    @property
    def run_notes(self) -> tuple[str, ...]:
        """A line for each corpus with several runs."""
        every = self.study.store.of_model(self.model.identity, "routed")
        return notes_on_others(self.runs.values(), every, self.choices.criterion)

    @cached_property
    def first(self) -> Ranking:
        """The ranking of the plan."""
        return self.study.ranking(self.spec)

    @cached_property
    def ranking(self) -> Ranking:
        """The ranking of the plan on screen, if there is one.

        Of a file that which its provenance asks for; the controls' where it names none, or the
        statistics are not here.
        """
        if self.shown and self.shown.ranking:
            return self.shown.ranking
        return self._ranking_of_file or self.first

    @property
    def _ranking_of_file(self) -> Ranking | None:
        plan = self.shown.plan if self.shown and self.shown.file else None
        if not plan or plan.granularity == NEURON_GRANULARITY or not is_ordered(plan):
            return None
        try:
            return self.study.ranking(order_asked_of(plan, self.model))
        except UserError:
            return None

    @cached_property
    def neurons(self) -> Ranking:
        """The ranking of neurons."""
        return replace(self.scores, spec=self.neuron_spec)

    @property
    def scores(self) -> Ranking:
        """The saliency of every neuron, see `Study.scores`."""
        return self.study.scores(self.neuron_spec)

    @cached_property
    def sensitivity(self) -> Sensitivity | None:
        """Curves of the loss increase in the plan's order, on every measured corpus."""
        if self.choices.spec.ranking.granularity not in self.study.measured_granularities:
            return None
        try:
            return self.study.added_losses(self.ranking)
        except UserError:  # beside a plan from a file, its controls may lack statistics
            return None

    @cached_property
    def predicted(self) -> PredictedLoss | None:
        """Predicted loss increase of the plan on screen, see `Study.predicted`."""
        if self.shown is None:
            return None
        if not self.shown.plan.named_bits and self.sensitivity is None:
            return None
        return self.study.predicted(self.shown.plan, self.ranking)

    @cached_property
    def second(self) -> Ranking:
        """The ranking of the second plan."""
        return self._beside_ranking if self.beside else self.study.ranking(self.both.b.plan)

    @property
    def second_plan(self) -> PruningPlan:
        """The second plan."""
        return self.beside.plan if self.beside else self.study.plan_of(self.second)

    @cached_property
    def as_second(self) -> "Loaded | None":
        """The pinned second plan as the one on screen, with its own choices; None without one."""
        choices = self.beside_choices
        return Loaded(self.study, choices, shown=self.beside) if choices else None

    @cached_property
    def _beside_ranking(self) -> Ranking:
        """The ranking of the whole second plan, which a file may only name."""
        if self.beside is None:
            raise PlanError("There is no second plan.")
        asked = self.beside.ranking
        return asked or self.study.ranking(order_asked_of(self.beside.plan, self.model))

    @property
    def beside_file(self) -> str:
        """The file of the whole second plan in command lines."""
        return self.beside.own_file if self.beside else ""

    @property
    def compare_lines(self) -> list[str]:
        """The command lines that compare both plans; none of a file, which cannot be the first."""
        file = self.shown.file if self.shown else ""
        return [] if file else [*self.lines_before, self.both.command()]

    @property
    def lines_before(self) -> list[str]:
        """The command line that makes the file of the whole second plan; none if there is one."""
        is_made = self.beside is not None and self.beside.ranking is not None
        return [self.both.b.command(out=self.beside_file)] if is_made else []

    @cached_property
    def calibrated(self) -> dict[str, ExpertStats]:
        """The statistics of each corpus."""
        return {corpus: self.study.stats_of(run) for corpus, run in self.runs.items()}

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

    def ranked(self, ranking: Ranking) -> SaliencyGrid:
        """Scores and saliency of every expert."""
        return self.study.cached(rank, ranking.criterion, ranking.choice.stats, ranking.gate)

    @cached_property
    def comparison(self) -> Comparison:
        """The plan (A) compared with the second (B)."""
        a = decision(self.ranking, self.shown_plan)
        return Comparison(a, decision(self.second, self.second_plan))

    @cached_property
    def neurons_compared(self) -> NeuronComparison:
        """The plan of neurons (A) compared with the second (B)."""
        if self.beside is None:
            raise PlanError(
                "A plan of neurons is compared with another one of neurons, which --with-plan "
                "names; on the pages pin it, and choose it under Compare with."
            )
        plans = self.shown_plan, self.beside.plan
        return self.study.cached(compare_neurons, *plans, self.model)

    @property
    def shown_plan(self) -> PruningPlan:
        """The plan on screen; for a command, that of the spec."""
        return self.shown.plan if self.shown else self.study.plan_of(self.first)

    @property
    def names(self) -> tuple[str, str]:
        """Both plans in a few words."""
        if self.beside:
            names = (CurrentPlan(self.shown_plan) if self.shown is None else self.shown).name
            a, b = names or _in_words(self.first), self.beside.name or _in_words(self.second)
            plans = (self.shown_plan, self.beside.plan)
            ids = [f" ({plan.digest[:8]})" if a == b else "" for plan in plans]
            return a + ids[0], b + ids[1]
        file = self.shown.file if self.shown else ""
        return file or _in_words(self.first), _in_words(self.second)

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


def _in_words(ranking: Ranking) -> str:
    source = corpora_words(ranking.choice.corpora) or criterion_badge(ranking.criterion)
    gate = ", renormalized" if ranking.gate != "applied" else ""
    amount = next(iter(ranking.spec.budget.amounts.values()), "")
    return f"{ranking.criterion.label}, {source}{gate}, {amount}"


def loss_of_plan(loaded: Loaded) -> tuple[PlanLoss | None, RandomLoss | None]:
    """Measured loss of the plan on screen, and of Random at its sparsity."""
    losses = loaded.study.losses
    loss = loss_of(losses, loaded.shown.plan.digest) if loaded.shown else None
    if loss is None or loss.way or loss.missing or loss.facts.bits:
        return loss, None
    return loss, random_at(losses, loss.facts.removed or 0.0, loss.facts.granularity)


def loss_text(loaded: Loaded, loss: PlanLoss | None, chance: RandomLoss | None) -> str:
    """Loss of the plan on screen: measured (see `loss_of_plan`), else predicted."""
    if loss is None:
        return loaded.predicted.words if loaded.predicted else "loss not measured"
    words = loss.words
    if loss.missing:
        words += f", not measured on {', '.join(loss.missing)}"
    elif chance is not None and not loss.is_random:
        words += f", {loss.random_name} {chance.mean:+z.2f}"
    return f"{words}; {in_short(loss)}" if loss.right else words
