"""Plans from rankings: criterion, statistics, budget and schedule or scope -> what is kept."""

from dataclasses import replace

from analysis.errors import PlanError
from analysis.files.own_package import tool_version
from analysis.model.moe_model import MoEModel
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
from pruning.plan.constraints import check_multiple, check_total, rooms_of
from pruning.plan.experts_per_token import check_top_k
from pruning.plan.keep_list import read_keep_list
from pruning.plan.plan import (
    Provenance,
    PruningPlan,
    fit_plan,
    model_ref,
    select_experts,
    with_top_k,
)
from pruning.planning.choice import row_counts
from pruning.planning.neurons import Arena, arena_of, check_neurons, plan_neurons, plan_of_file
from pruning.planning.ranking import (
    Ranking,
    recorded,
    sensitivity_for,
)
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
from pruning.spec.spec import PlanSpec

PLAN_FILE = "plan.json"  # that commands write and read


def make_plan(ranking: Ranking, spec: PlanSpec, arena: Arena | None = None) -> PruningPlan:
    """What a spec keeps of a ranking; pure, and what `Study.plan` calls.

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
        provenance=provenance_of(ranking, spec, spending),
        constraints=spending.constraints,
    )
    notes = allocation_notes(spec.spread.schedule, spending, allocation, evidence)
    if spec.spread.is_measured:
        notes = (sensitivity_for(ranking, spec).note(allocation.removed), *notes)
    if (target := spec.budget.size_target) and spec.is_even:
        removed = allocation.removed
        notes = (*notes, smaller_cut(ranking.model, target, spending.constraints, removed))
    plan = replace(plan, notes=tuple(filter(None, notes)))
    return with_top_k(plan, ranking.model, spec.budget.top_k)


def plan_of_files(spec: PlanSpec, model: MoEModel) -> PruningPlan:
    """The plan of a file that names all that stays."""
    by_file = plan_of_file if spec.by_neuron else plan_of_list
    return with_top_k(by_file(spec, model), model, spec.budget.top_k)


def plan_of_list(spec: PlanSpec, model: MoEModel) -> PruningPlan:
    """The plan of `kept_experts`, which names the experts that stay."""
    path = spec.spread.kept_experts
    if path is None:
        raise ValueError("the spec names no file")
    provenance = Provenance(
        schedule="file",
        tool_version=tool_version(),
        schedule_parameters={"file": path.name},
        spec=recorded(spec),
    )
    kept = read_keep_list(path, model.layers)
    return fit_plan(PruningPlan(model_ref(model), kept, provenance), model)


def plan_rounding(plan: PruningPlan, model: MoEModel) -> str | None:
    """The note on a rounded sparsity of a plan of experts."""
    made = plan.provenance.budget
    budget = Budget(made["removed"], made["kind"], made["asked"])
    return rounding_note(budget, [layer.num_experts for layer in model.layers])


def evidence_of(ranking: Ranking, spec: PlanSpec) -> Evidence:
    """What the schedule may look at, with the counts of its file."""
    if spec.spread.is_measured:
        sensitivity_for(ranking, spec)
    path = spec.spread.schedule_file
    if path is None:
        return ranking.evidence
    return replace(ranking.evidence, counts=read_counts(path, ranking.model.layers))


def file_evidence(spec: PlanSpec, model: MoEModel) -> Evidence:
    """What a schedule may look at without a ranking: the counts of its file."""
    path = spec.spread.schedule_file
    return Evidence(counts=read_counts(path, model.layers) if path else None)


def provenance_of(ranking: Ranking, spec: PlanSpec, spending: Spending) -> Provenance:
    """How a plan of experts was made."""
    read, tokens = [ranking.choice], ranking.tokens
    schedule, parameters, file = spec.spread.schedule, {}, spec.spread.schedule_file
    record = recorded(spec, ranking)
    if spec.reads_text and tokens and tokens is not ranking.choice:
        read.append(tokens)
    if file is not None:
        searched, parameters = search_in(file), {"file": file.name}
        # In another order than its own, the counts of a search are no longer its result.
        if searched and searched.order == order_digest(ranking.table):
            schedule, parameters = SEARCH, searched.parameters()
            record = searched.spec.to_json()  # as the search itself records its plan
    if spec.spread.is_measured:
        parameters = sensitivity_for(ranking, spec).to_dict()
    return Provenance(
        criterion=ranking.criterion.name,
        gate=spec.ranking.gate if ranking.criterion.uses_gate else "",
        corpora=tuple(name for choice in read for name in choice.corpora),
        runs=tuple(run.manifest.run_id for choice in read for run in choice.runs),
        schedule=schedule,
        sparsity=spec.budget.sparsity or "",
        tool_version=tool_version(),
        budget=spending.budget.to_dict(),
        schedule_parameters=parameters,
        constraints=spending.constraints.to_dict(),
        spec=record,
        rows=row_counts(run for choice in read for run in choice.runs),
    )


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


def check_spec(spec: PlanSpec, model: MoEModel) -> None:
    """Refuse what is impossible whatever the statistics, before any are made."""
    if spec.budget.top_k:
        check_top_k(model, spec.budget.top_k)
    if spec.by_neuron:
        check_neurons(spec, model)
        return
    if spec.spread.kept_experts is not None:
        read_keep_list(spec.spread.kept_experts, model.layers)
        return
    evidence = file_evidence(spec, model)
    spending = spending_of(spec, model, evidence)
    if get_schedule(spec.spread.schedule).needs <= {"counts"}:
        allocate(spec.spread.schedule, spending, evidence)
    else:
        check_total(spending.budget.total, rooms_of(model.layers, spending.constraints))
