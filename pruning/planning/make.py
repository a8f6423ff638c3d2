"""Plans from rankings: criterion, statistics, budget and schedule or scope -> what is kept."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from analysis.errors import PlanError
from pruning.plan.budget import (
    Budget,
    check_removes,
    count_budget,
    even_budget,
    rounding_note,
    size_budget,
    smaller_cut,
    sparsity_budget,
)
from pruning.plan.constraints import check_multiple, rooms_of
from pruning.plan.plan import (
    PruningPlan,
    model_ref,
    select_experts,
    with_top_k,
)
from pruning.planning.neurons import Arena, arena_of, plan_neurons
from pruning.schedules import (
    Evidence,
    Spending,
    allocate,
    budget_notes,
    get_schedule,
    read_counts,
    uneven_note,
)
from pruning.schedules.counts import counts_budget

if TYPE_CHECKING:
    from analysis.model.moe_model import MoEModel
    from pruning.planning.ranking import Ranking
    from pruning.spec.spec import PlanSpec

PLAN_FILE = "plan.json"  # that commands write and read


def make_plan(ranking: Ranking, spec: PlanSpec, arena: Arena | None = None) -> PruningPlan:
    """What a spec keeps of a ranking.

    `arena` is `arena_of` the spec, for a plan of neurons, if it was computed already.
    """
    if spec.by_neuron:
        plan = plan_neurons(ranking, spec, arena or arena_of(ranking, spec))
        return with_top_k(plan, ranking.model, spec.budget.top_k)
    evidence = evidence_of(ranking, spec)
    spending = spending_of(ranking.settled(spec), ranking.model, evidence)
    allocation = allocate(spec.spread.schedule, spending, evidence)
    plan = select_experts(
        ranking.table,
        allocation,
        model=model_ref(ranking.model),
        provenance=ranking.provenance(spec, spending),
        constraints=spending.constraints,
    )
    notes = budget_notes(spec.spread.schedule, spending, allocation, evidence)
    plan = replace(plan, notes=notes)
    return with_top_k(plan, ranking.model, spec.budget.top_k)


def with_further_notes(plan: PruningPlan, ranking: Ranking, spec: PlanSpec) -> PruningPlan:
    """A plan of experts with what commands say besides: its cost, who reads it, a nearer cut."""
    model, notes = ranking.model, list(plan.notes)
    kept = [len(plan.kept[layer.index]) for layer in model.layers]
    removed = tuple(
        layer.num_experts - keep for layer, keep in zip(model.layers, kept, strict=True)
    )
    if spec.spread.is_measured:
        notes.insert(0, ranking.curves_for(spec).note(removed))
    notes.append(uneven_note(kept))
    if (target := spec.budget.size_target) and spec.is_even:
        notes.append(smaller_cut(model, target, ranking.settled(spec).constraints, removed))
    return replace(plan, notes=tuple(filter(None, notes)))


def plan_rounding(plan: PruningPlan, model: MoEModel) -> str | None:
    """The note on a rounded sparsity of a plan of experts."""
    made = plan.provenance.budget
    budget = Budget(made["removed"], made["kind"], made["asked"])
    return rounding_note(budget, [layer.num_experts for layer in model.layers])


def evidence_of(ranking: Ranking, spec: PlanSpec) -> Evidence:
    """What the schedule may look at, with the counts of its file."""
    if spec.spread.is_measured:
        ranking.curves_for(spec)  # refuses where nothing was measured
    path = spec.spread.schedule_file
    if path is None:
        return ranking.evidence
    return replace(ranking.evidence, counts=read_counts(path, ranking.model.layers))


def file_evidence(spec: PlanSpec, model: MoEModel) -> Evidence:
    """What a schedule may look at without a ranking: the counts of its file."""
    path = spec.spread.schedule_file
    return Evidence(counts=read_counts(path, model.layers) if path else None)


def spending_of(spec: PlanSpec, model: MoEModel, evidence: Evidence) -> Spending:
    """The budget and the constraints of a plan of experts."""
    layers, limits, asked = model.layers, spec.constraints, spec.budget
    is_even, schedule, file = spec.is_even, spec.spread.schedule, spec.spread.schedule_file

    def taken(total: int) -> tuple[int, ...]:
        """Experts that the schedule removes from each layer."""
        spending = Spending(layers, Budget(total, "size", ""), limits)
        return allocate(schedule, spending, evidence).removed

    if asked.remove != 0 and not (asked.sparsity and asked.fraction == 0):
        check_multiple(layers, limits)
    if asked.sparsity:
        budget = sparsity_budget(layers, asked.sparsity, limits, even=is_even)
        check_removes(budget, rooms_of(layers, limits))
    elif asked.remove is not None:
        budget = count_budget(layers, asked.remove)
    elif (target := asked.size_target) and is_even:
        budget = even_budget(model, target, limits)
    elif target:
        needs = get_schedule(schedule).needs
        # Its evidence may not be known yet.
        knows = "counts" not in needs and all(getattr(evidence, n) is not None for n in needs)
        budget = size_budget(model, target, limits, spread=taken if knows else None)
    elif evidence.counts is None or file is None:
        raise PlanError("No budget was given: a sparsity, a number of experts or a size.")
    else:
        budget = counts_budget(layers, evidence.counts, file.name)
    return Spending(layers, budget, limits)
