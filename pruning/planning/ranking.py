"""A selection: criterion, statistics, budget and schedule -> ranking and plan."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from analysis.criteria import CRITERIA, Criterion, get_criterion
from analysis.errors import PlanError
from analysis.model import MoEModel
from analysis.ranking.experts import Stats, rank_experts
from analysis.stats.blend import Part
from analysis.stats.choose import Choice, choose_stats, parse_corpus_weight, routed_choice
from analysis.stats.store import StatsStore
from analysis.stats.tables import ExpertStats
from pruning.allocation import Allocation
from pruning.budget import Budget, Spread, count_budget, size_budget, sparsity_budget
from pruning.constraints import check_total, rooms_of
from pruning.plan import Provenance, PruningPlan, model_ref, select_experts, tool_version
from pruning.requests.base import SelectRequest
from pruning.schedules import (
    Evidence,
    Spending,
    allocate,
    allocation_notes,
    fold_ranking,
    get_schedule,
    read_counts,
)
from pruning.schedules.counts import counts_budget
from pruning.search.store import SEARCH, order_digest, search_in

FREQUENCY = "frequency"


@dataclass(frozen=True, eq=False)
class Decision:
    """A plan, and how it came about.

    Args:
        plan: the experts that stay.
        allocation: how many in each layer.
        notes: what a person should know of the allocation, one line each.
    """

    plan: PruningPlan
    allocation: Allocation
    notes: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Selection:
    """What was asked for, and the statistics that answer it.

    Args:
        request: what was asked for.
        model: the model to prune.
        criterion: ranks within each layer.
        choice: the statistics that it reads.
        tokens: statistics that count routed tokens, if there are any; the frequency schedule's.
    """

    request: SelectRequest
    model: MoEModel
    criterion: Criterion
    choice: Choice[Stats]
    tokens: Choice[Stats] | None = None

    def ranking(self) -> pd.DataFrame:
        """Table `layer, expert, score, saliency, rank, num_tokens`."""
        return rank_experts(self.criterion, self.choice.stats, self.request.gate)

    def evidence(self, ranking: pd.DataFrame) -> Evidence:
        """What schedules may look at, given the ranking of this selection.

        Raises:
            PlanError: the schedule's file cannot be read.
        """
        layers, path = self.model.layers, self.request.schedule_file
        frequency = None
        if self.tokens is not None:
            by_tokens = rank_experts(CRITERIA[FREQUENCY], self.tokens.stats, self.request.gate)
            frequency = fold_ranking(by_tokens, layers)
        counts = read_counts(path, layers) if path else None
        return Evidence(fold_ranking(ranking, layers), frequency, counts)

    def spending(self, evidence: Evidence) -> Spending:
        """The budget and the constraints.

        Raises:
            PlanError: the budget cannot be met.
        """
        return spending_of(self.request, self.model, evidence)

    def decision(self) -> Decision:
        """The experts that stay, and what a person should know of them.

        Raises:
            PlanError: the layers cannot meet the budget under the constraints.
        """
        ranking = self.ranking()
        evidence = self.evidence(ranking)
        spending = self.spending(evidence)
        allocation = allocate(self.request.schedule, spending, evidence)
        plan = select_experts(
            ranking,
            allocation,
            model=model_ref(self.model),
            provenance=self.provenance(spending),
            constraints=spending.constraints,
        )
        notes = allocation_notes(self.request.schedule, spending, allocation, evidence)
        return Decision(plan, allocation, notes)

    def plan(self) -> PruningPlan:
        """The experts that stay; see `decision`."""
        return self.decision().plan

    def provenance(self, spending: Spending) -> Provenance:
        """How a plan of this selection comes about."""
        request, read = self.request, [self.choice]
        if request.schedule == FREQUENCY and self.tokens and self.tokens is not self.choice:
            read.append(self.tokens)
        schedule, parameters = self._schedule_said()
        return Provenance(
            criterion=self.criterion.name,
            gate=request.gate if self.criterion.uses_gate else "",
            corpora=tuple(name for choice in read for name in choice.corpora),
            runs=tuple(run.manifest.run_id for choice in read for run in choice.runs),
            schedule=schedule,
            sparsity=request.sparsity,
            tool_version=tool_version(),
            budget=spending.budget.to_dict(),
            schedule_parameters=parameters,
            constraints=spending.constraints.to_dict(),
        )

    def _schedule_said(self) -> tuple[str, dict[str, Any]]:
        """Name and parameters of the schedule: of a file, or of the search that wrote it."""
        file = self.request.schedule_file
        if file is None:
            return self.request.schedule, {}
        searched = search_in(file)
        # Numbers of a search in another order than its own are no longer what it found.
        if searched and searched.order == order_digest(self.ranking()):
            return SEARCH, searched.parameters()
        return self.request.schedule, {"file": file.name}


def spending_of(request: SelectRequest, model: MoEModel, evidence: Evidence) -> Spending:
    """The budget and the constraints of a request.

    Raises:
        PlanError: the budget cannot be met.
    """
    constraints = request.constraints
    return Spending(model.layers, _budget(request, model, evidence), constraints)


def _budget(request: SelectRequest, model: MoEModel, evidence: Evidence) -> Budget:
    if request.sparsity:
        return sparsity_budget(model.layers, request.sparsity)
    if request.remove is not None:
        return count_budget(model.layers, request.remove)
    if request.target_gib is not None:
        return size_budget(
            model,
            request.target_gib,
            request.target_dtype,
            request.constraints,
            spread=_spread(request, model, evidence),
        )
    if evidence.counts is None or request.schedule_file is None:
        raise PlanError("No budget was given: a sparsity, a number of experts or a size.")
    return counts_budget(model.layers, evidence.counts, request.schedule_file.name)


def _spread(request: SelectRequest, model: MoEModel, evidence: Evidence) -> Spread | None:
    """What the schedule takes from each layer; None where what it looks at is not known yet."""
    needs = get_schedule(request.schedule).needs
    if "counts" in needs or any(getattr(evidence, need) is None for need in needs):
        return None

    def taken(total: int) -> tuple[int, ...]:
        spending = Spending(model.layers, Budget(total, "size", ""), request.constraints)
        return allocate(request.schedule, spending, evidence).removed

    return taken


def check_request(request: SelectRequest, model: MoEModel) -> None:
    """Refuse what no statistics could make possible, before any are made.

    Raises:
        PlanError: the layers cannot meet the budget under the constraints.
    """
    path = request.schedule_file
    seen = Evidence(counts=read_counts(path, model.layers) if path else None)
    spending = spending_of(request, model, seen)
    if get_schedule(request.schedule).needs <= {"counts"}:
        allocate(request.schedule, spending, seen)
    else:
        check_total(spending.budget.total, rooms_of(model.layers, spending.constraints))


def selected_from(
    request: SelectRequest, model: MoEModel, store: StatsStore, parts: Sequence[Part]
) -> Selection:
    """The selection from the calibration runs of a recipe; without any, from the weights.

    Raises:
        UserError: an unknown criterion, or no statistics that fit.
    """
    criterion = get_criterion(request.criterion)
    tokens = routed_choice(parts) if parts else None
    if criterion.source == "routed" and tokens:
        return Selection(request, model, criterion, tokens, tokens)
    return Selection(request, model, criterion, choose_stats(criterion, store, model), tokens)


def select(
    request: SelectRequest,
    model: MoEModel,
    store: StatsStore,
    choose: Callable[..., Choice[Stats]] = choose_stats,
) -> Selection:
    """Find the statistics that a request needs; `choose` finds those of one criterion.

    Raises:
        UserError: an unknown criterion, or no statistics that fit.
    """
    criterion = get_criterion(request.criterion)
    corpora = [parse_corpus_weight(text) for text in request.corpora]
    if request.schedule == FREQUENCY and criterion.source != "routed":
        # The criterion reads no text, so a corpus or a run is the schedule's.
        counted = choose(CRITERIA[FREQUENCY], store, model, corpora, request.runs)
        return Selection(request, model, criterion, choose(criterion, store, model), counted)
    choice = choose(criterion, store, model, corpora, request.runs)
    tokens = choice if isinstance(choice.stats, ExpertStats) else None
    return Selection(request, model, criterion, choice, tokens)


def criterion_badge(criterion: Criterion) -> str:
    """Exponents of a unified variant, or the source of another criterion."""
    if criterion.exponents is not None:
        b, alpha, beta = criterion.exponents
        return f"b={b} α={alpha} β={beta}"  # noqa: RUF001  (Greek on purpose)
    return {"routed": "calibrated", "weights": "weights only", "none": "no data"}[criterion.source]
