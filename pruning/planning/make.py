"""Plans from rankings: criterion, statistics, budget and schedule or scope -> what is kept."""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace

from analysis.criteria import get_criterion
from analysis.errors import PlanError
from analysis.model import MoEModel
from analysis.progress import Progress
from analysis.stats.blend import Part
from analysis.stats.store import StatsStore
from pruning.budget import (
    Budget,
    check_removes,
    count_budget,
    even_budget,
    rounding_note,
    size_budget,
    smaller_cut,
    sparsity_budget,
)
from pruning.constraints import check_multiple, check_total, rooms_of
from pruning.plan import Provenance, PruningPlan, model_ref, select_experts, tool_version
from pruning.planning.choice import corpora_words, schedule_words
from pruning.planning.measured import with_sensitivity
from pruning.planning.neurons import Arena, arena_of, check_neurons, plan_neurons, plan_of_file
from pruning.planning.ranking import (
    FREQUENCY,
    Ranking,
    Selection,
    select_measured,
    sensitivity_for,
)
from pruning.requests.base import command_line
from pruning.requests.plan import PlanRequest
from pruning.schedules import (
    Evidence,
    Spending,
    allocate,
    allocation_notes,
    get_schedule,
    read_counts,
)
from pruning.schedules.counts import counts_budget
from pruning.search.store import SEARCH, order_digest, search_in


@dataclass(frozen=True, eq=False)
class Decision:
    """A plan, and notes on it for people, one line each."""

    plan: PruningPlan
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class CurrentPlan:
    """The plan on screen, one for all pages."""

    plan: PruningPlan  # complete, for the model on screen
    notes: tuple[str, ...] = ()  # for people
    selection: Selection | None = None  # None for a plan from a file
    file: str = ""  # name of that file

    @property
    def kept(self) -> dict[int, int]:
        """Layer -> experts kept."""
        return {layer: len(ids) for layer, ids in self.plan.kept.items()}

    @property
    def name(self) -> str:
        """Its name for people: its file, or criterion, corpora, schedule and sparsity."""
        made = self.plan.provenance
        label = get_criterion(made.criterion).label if made.criterion else ""
        schedule = "by hand" if made.constraints.get("fixed") else schedule_words(made.schedule)
        words = (label, corpora_words(made.corpora), schedule, made.sparsity)
        return self.file or ", ".join(filter(None, words))

    def plan_command(self, model: str) -> str:
        """The command line that makes the plan, or shows the file that holds it."""
        if self.selection is not None:
            return self.selection.request.command()
        return command_line("plans", "show", self.file, "--model", model)


def make_plan(ranking: Ranking, request: PlanRequest, arena: Arena | None = None) -> Decision:
    """What a request keeps: a pure function that Python, commands, jobs and pages all use.

    `arena` is `arena_of` the request, for a plan of neurons, if it was computed already.
    """
    if request.by_neuron:
        return Decision(*plan_neurons(ranking, request, arena or arena_of(ranking, request)))
    evidence = evidence_of(ranking, request)
    spending = spending_of(request, ranking.model, evidence)
    allocation = allocate(request.schedule, spending, evidence)
    plan = select_experts(
        ranking.table,
        allocation,
        model=model_ref(ranking.model),
        provenance=provenance_of(ranking, request, spending),
        constraints=spending.constraints,
    )
    notes = allocation_notes(request.schedule, spending, allocation, evidence)
    if request.is_measured:
        notes = (sensitivity_for(ranking, request).note(allocation.removed), *notes)
    if (target := request.size_target) and request.is_even:
        removed = allocation.removed
        notes = (*notes, smaller_cut(ranking.model, target, spending.constraints, removed))
    return Decision(plan, tuple(filter(None, notes)))


def plan_from_stats(
    request: PlanRequest, model: MoEModel, store: StatsStore, parts: Sequence[Part] = ()
) -> Generator[Progress, None, tuple[Decision, Selection | None]]:
    """The plan of a request, and its ranking; None if a file says all. See `select_measured`."""
    if request.kept_neurons is not None:
        return Decision(plan_of_file(request, model)), None
    selection = yield from select_measured(request, model, store, parts)
    selection = with_sensitivity(selection, request, store)
    return make_plan(selection, request), selection


def plan_rounding(plan: PruningPlan, model: MoEModel) -> str | None:
    """The note on a rounded sparsity of a plan of experts."""
    made = plan.provenance.budget
    budget = Budget(made["removed"], made["kind"], made["asked"])
    return rounding_note(budget, [layer.num_experts for layer in model.layers])


def evidence_of(ranking: Ranking, request: PlanRequest) -> Evidence:
    """What the schedule of a request may look at, with the counts of its file."""
    if request.is_measured:
        sensitivity_for(ranking, request)
    path = request.schedule_file
    if path is None:
        return ranking.evidence
    return replace(ranking.evidence, counts=read_counts(path, ranking.model.layers))


def provenance_of(ranking: Ranking, request: PlanRequest, spending: Spending) -> Provenance:
    """How a plan of experts was made."""
    read, tokens = [ranking.choice], ranking.tokens
    if request.schedule == FREQUENCY and tokens and tokens is not ranking.choice:
        read.append(tokens)
    schedule, parameters, file = request.schedule, {}, request.schedule_file
    if file is not None:
        searched, parameters = search_in(file), {"file": file.name}
        # In another order than its own, the counts of a search are no longer its result.
        if searched and searched.order == order_digest(ranking.table):
            schedule, parameters = SEARCH, searched.parameters()
    if request.is_measured:
        parameters = sensitivity_for(ranking, request).to_dict()
    return Provenance(
        criterion=ranking.criterion.name,
        gate=request.gate if ranking.criterion.uses_gate else "",
        corpora=tuple(name for choice in read for name in choice.corpora),
        runs=tuple(run.manifest.run_id for choice in read for run in choice.runs),
        schedule=schedule,
        sparsity=request.sparsity,
        tool_version=tool_version(),
        budget=spending.budget.to_dict(),
        schedule_parameters=parameters,
        constraints=spending.constraints.to_dict(),
    )


def spending_of(request: PlanRequest, model: MoEModel, evidence: Evidence) -> Spending:
    """The budget and the constraints of a plan of experts."""
    layers, limits = model.layers, request.constraints

    def taken(total: int) -> tuple[int, ...]:
        """Experts that the schedule removes from each layer."""
        spending = Spending(layers, Budget(total, "size", ""), limits)
        return allocate(request.schedule, spending, evidence).removed

    if request.remove != 0 and not (request.sparsity and request.fraction == 0):
        check_multiple(layers, limits)
    if request.sparsity:
        budget = sparsity_budget(layers, request.sparsity, limits, even=request.is_even)
        check_removes(budget, rooms_of(layers, limits))
    elif request.remove is not None:
        budget = count_budget(layers, request.remove)
    elif (target := request.size_target) and request.is_even:
        budget = even_budget(model, target, limits)
    elif target:
        needs = get_schedule(request.schedule).needs
        # Its evidence may not be known yet.
        knows = "counts" not in needs and all(getattr(evidence, n) is not None for n in needs)
        budget = size_budget(model, target, limits, spread=taken if knows else None)
    elif evidence.counts is None or request.schedule_file is None:
        raise PlanError("No budget was given: a sparsity, a number of experts or a size.")
    else:
        budget = counts_budget(layers, evidence.counts, request.schedule_file.name)
    return Spending(layers, budget, limits)


def check_request(request: PlanRequest, model: MoEModel) -> None:
    """Refuse what is impossible whatever the statistics, before any are made."""
    if request.by_neuron:
        check_neurons(request, model)
        return
    path = request.schedule_file
    seen = Evidence(counts=read_counts(path, model.layers) if path else None)
    spending = spending_of(request, model, seen)
    if get_schedule(request.schedule).needs <= {"counts"}:
        allocate(request.schedule, spending, seen)
    else:
        check_total(spending.budget.total, rooms_of(model.layers, spending.constraints))
