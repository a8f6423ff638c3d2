"""Plans from rankings: criterion, statistics, budget and schedule or scope -> what is kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from analysis.cache_keys import most_results
from analysis.errors import PlanError
from analysis.model.widths import expert_widths
from pruning.plan.budget import (
    Budget,
    check_removes,
    count_budget,
    even_budget,
    rounding_note,
    size_budget,
    smaller_cut,
    smallest_budget,
    sparsity_budget,
)
from pruning.plan.constraints import check_multiple
from pruning.plan.kept import KeptNeurons, check_cuttable
from pruning.plan.plan import (
    NEURON_GRANULARITY,
    Provenance,
    PruningPlan,
    fit_plan,
    model_ref,
    with_top_k,
)
from pruning.plan.selection import kept_experts, neurons_left, select_experts, widths_left
from pruning.plan.sizes import total_size, width_sizes
from pruning.plan.units import NEURONS, Removed, Units, expert_units, neuron_units
from pruning.plan.widths import WidthChoice
from pruning.schedules import (
    MEASURED,
    Evidence,
    allocate,
    budget_notes,
    counts_budget,
    get_schedule,
    spend,
    uneven_note,
)

if TYPE_CHECKING:
    from analysis.model.moe_model import MoEModel
    from analysis.numbers.arrays import NeuronScores
    from pruning.measures.curves import Sensitivity
    from pruning.plan.budget import SizeTarget
    from pruning.planning.ranking import Ranking
    from pruning.spec.spec import PlanSpec

PLAN_FILE = "plan.json"  # that commands write and read


def make_plan(ranking: Ranking, spec: PlanSpec, units: Units | None = None) -> PruningPlan:
    """What a spec keeps of a ranking.

    `units` are `neuron_units_of` the spec, for a plan of neurons, if they were computed already.
    """
    by_what = plan_neurons if spec.by_neuron else plan_experts
    plan = by_what(ranking, spec, units or units_of(ranking, spec))
    return with_top_k(plan, ranking.model, spec.budget.top_k)


def units_of(ranking: Ranking, spec: PlanSpec) -> Units:
    """What can go under the limits of a spec."""
    if spec.by_neuron:
        return neuron_units_of(ranking, spec)
    return experts_of(ranking.settled(spec), ranking.model)


def experts_of(spec: PlanSpec, model: MoEModel) -> Units:
    """The experts that can go under the limits of a spec."""
    asked, limits = spec.budget, spec.constraints_for(model)
    if asked.remove != 0 and not (asked.sparsity and asked.fraction == 0):
        check_multiple(model.layers, limits, spec.parallel)
    return expert_units(model.layers, limits)


@most_results(12)
def neuron_units_of(ranking: Ranking, spec: PlanSpec) -> Units:
    """The neurons that can go under a spec's scope and limits, whatever its budget."""
    check_cuttable(ranking.model)
    return neuron_units_for(ranking.model, ranking.settled(spec), ranking.neurons)


def neuron_units_for(model: MoEModel, spec: PlanSpec, saliency: NeuronScores) -> Units:
    """The same of saliency by layer and expert."""
    limits = spec.constraints_for(model)
    kept_experts(model.layers, limits)  # refuses
    return neuron_units(expert_widths(model), limits, spec.spread.scope, saliency)


def budget_of(spec: PlanSpec, units: Units, model: MoEModel, evidence: Evidence) -> Budget:
    """How many units a spec removes."""
    asked, file = spec.budget, spec.spread.schedule_file
    is_even = spec.by_neuron or spec.is_even
    if asked.sparsity:
        return check_removes(sparsity_budget(units, asked.sparsity, even=is_even), units)
    if asked.remove is not None:
        return count_budget(units, asked.remove)
    if (target := asked.size_target) is not None:
        if spec.by_neuron:
            return neuron_size_budget(units, model, target, asked.widths, evidence.sensitivity)
        if is_even:
            return even_budget(model, target, units.limits)
        spread = _spread_of(spec.spread.schedule, units, evidence)
        return size_budget(model, target, units.limits, spread=spread)
    if evidence.counts is None or file is None:
        raise PlanError("No budget was given: a sparsity, a number of experts or a size.")
    return counts_budget(units, evidence.counts, file.name)


def _spread_of(
    schedule: str, units: Units, evidence: Evidence
) -> Callable[[int], tuple[int, ...]] | None:
    """Experts that the schedule removes of a number; None if its evidence is not known yet."""
    needs = get_schedule(schedule).needs
    if "counts" in needs or any(getattr(evidence, need) is None for need in needs):
        return None
    return lambda total: allocate(schedule, units, Budget(total, "size", ""), evidence).removed


def neurons_removed(
    units: Units, budget: Budget, sensitivity: Sensitivity | None = None
) -> Removed:
    """Neurons that each expert loses: by curves of the layers, or of each pool the same share."""
    schedule = MEASURED if sensitivity else "uniform"
    return spend(schedule, units, budget, Evidence(sensitivity=sensitivity))


def neuron_size_budget(
    units: Units,
    model: MoEModel,
    target: SizeTarget,
    choice: WidthChoice | None = None,
    sensitivity: Sensitivity | None = None,
) -> Budget:
    """The smallest number of neurons that meets the target.

    A size on disk includes the zeros that fill up experts in the width mode `choice`. A share of
    the parameters (HEAPr, Fig. 2) does not: it is of all numbers in all tensors of the checkpoint,
    including embeddings, attention, dense layers, routers, shared experts and prediction heads.
    Removed neurons take their rows, columns and bias entries, dropped experts their router rows.
    """
    stored = None if target.kind == "params" else choice or WidthChoice()
    experts = kept_experts(model.layers, units.limits)

    def size_after(total: int) -> int:
        removed = neurons_removed(units, Budget(total, "size", ""), sensitivity)
        widths = widths_left(units, removed, experts)
        return target.measure(total_size(width_sizes(model, widths, stored).disk))

    return smallest_budget(units, model, target, size_after, stored.mode if stored else "")


def plan_experts(ranking: Ranking, spec: PlanSpec, units: Units) -> PruningPlan:
    """The plan of experts that a spec keeps of a ranking."""
    evidence, schedule = ranking.evidence_for(spec), spec.spread.schedule
    budget = budget_of(spec, units, ranking.model, evidence)
    allocation = allocate(schedule, units, budget, evidence)
    plan = select_experts(
        ranking.table,
        allocation,
        model=model_ref(ranking.model),
        provenance=ranking.provenance(spec, units, budget),
        constraints=units.limits,
    )
    return replace(plan, notes=budget_notes(schedule, units, budget, allocation, evidence))


def plan_neurons(ranking: Ranking, spec: PlanSpec, units: Units) -> PruningPlan:
    """The plan of neurons that a spec keeps of a ranking."""
    model = ranking.model
    sensitivity = ranking.curves_for(spec) if spec.spread.is_measured else None
    budget = budget_of(spec, units, model, Evidence(sensitivity=sensitivity))
    experts, pools = kept_experts(model.layers, units.limits), units.by_pool
    neurons = neurons_left(units, neurons_removed(units, budget, sensitivity), experts)
    measured = sensitivity.note(sensitivity.spend(pools, budget.total)) if sensitivity else None
    rounded = rounding_note(budget, pools.sizes, NEURONS)
    notes = (*ranking.choice.notes, measured, rounded)
    plan = plan_with(model, experts, neurons, ranking.provenance(spec, units, budget))
    return replace(plan, notes=tuple(filter(None, notes)))


def plan_with(
    model: MoEModel,
    experts: Mapping[int, tuple[int, ...]],
    neurons: KeptNeurons,
    provenance: Provenance,
) -> PruningPlan:
    """A plan of neurons, and of whole experts in some layers."""
    plan = PruningPlan(model_ref(model), experts, provenance, NEURON_GRANULARITY, neurons)
    return fit_plan(plan, model)


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
        notes.append(
            smaller_cut(model, target, ranking.settled(spec).constraints_for(model), removed)
        )
    return replace(plan, notes=tuple(filter(None, notes)))


def plan_rounding(plan: PruningPlan, model: MoEModel) -> str | None:
    """The note on a rounded sparsity of a plan of experts."""
    made = plan.provenance.budget
    budget = Budget(made["removed"], made["kind"], made["asked"])
    return rounding_note(budget, [layer.num_experts for layer in model.layers])
