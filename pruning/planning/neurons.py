"""Plans of neurons: a ranking, a budget and a scope -> the kept neurons."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from analysis.cache_keys import Numbered, most_results
from analysis.model.widths import expert_widths
from pruning.plan.budget import Budget, check_removes, rounding_note
from pruning.plan.kept_neurons import KeptNeurons, KeptWidths, check_cuttable
from pruning.plan.neuron_budget import (
    NEURONS,
    ExpertKey,
    kept_experts,
    neuron_count_budget,
    neuron_rooms,
    neuron_sparsity_budget,
)
from pruning.plan.neuron_selection import Contest
from pruning.plan.neuron_size_budget import neuron_size_budget, widths_left
from pruning.plan.plan import (
    NEURON_GRANULARITY,
    Provenance,
    PruningPlan,
    fit_plan,
    model_ref,
)
from pruning.schedules import MEASURED

if TYPE_CHECKING:
    from analysis.model.moe_model import MoEModel
    from analysis.numbers.arrays import NeuronScores
    from pruning.measures.curves import Sensitivity
    from pruning.planning.ranking import Ranking
    from pruning.spec.spec import BudgetSpec, PlanSpec


@dataclass(frozen=True, eq=False)
class Arena(Numbered):
    """The neurons that compete under the constraints of a spec, for any budget."""

    contest: Contest
    # Layer -> kept experts, for layers that lose whole ones.
    experts: dict[int, tuple[int, ...]]

    def budget(self, asked: BudgetSpec, model: MoEModel) -> Budget:
        """How many neurons to remove."""
        pools = self.contest.pools
        if asked.sparsity:
            return check_removes(neuron_sparsity_budget(pools, asked.sparsity), pools, NEURONS)
        if asked.remove is not None:
            return neuron_count_budget(pools, asked.remove)
        if (target := asked.size_target) is None:
            raise ValueError("the spec has no budget")
        return neuron_size_budget(self.contest, model, target, asked.widths, self.experts)

    def measured(self, sensitivity: Sensitivity) -> Arena:
        """The same neurons, with budgets spread over the layers as their sensitivity says."""
        return replace(self, contest=replace(self.contest, spread=sensitivity.shares))

    def plan(self, model: MoEModel, budget: Budget, cut: Collection[int]) -> PruningPlan:
        """The plan that spends a budget in these layers; the others stay whole."""
        removed, experts = self._within(budget, cut)
        return plan_with(model, experts, self.contest.kept(removed, experts), Provenance())

    def left(self, budget: Budget, cut: Collection[int]) -> KeptWidths:
        """Layer -> expert -> neurons that it keeps under this plan."""
        return widths_left(self.contest, *self._within(budget, cut))

    def _within(
        self, budget: Budget, cut: Collection[int]
    ) -> tuple[dict[ExpertKey, int], dict[int, tuple[int, ...]]]:
        """Neurons that each expert loses, and who stays in layers that lose whole experts."""
        removed = {
            (layer, expert): neurons if layer in cut else 0
            for (layer, expert), neurons in self.contest.removed(budget).items()
        }
        return removed, {layer: ids for layer, ids in self.experts.items() if layer in cut}


@most_results(12)
def arena_of(ranking: Ranking, spec: PlanSpec) -> Arena:
    """The neurons that compete under a spec's scope and constraints, whatever its budget."""
    check_cuttable(ranking.model)
    return arena_for(ranking.model, ranking.neurons, ranking.settled(spec))


def arena_for(model: MoEModel, saliency: NeuronScores, spec: PlanSpec) -> Arena:
    """The same of saliency by layer and expert."""
    limits = spec.constraints
    experts = kept_experts(model.layers, limits)
    rooms = neuron_rooms(expert_widths(model), limits)
    return Arena(Contest(saliency, rooms, spec.spread.scope), experts)


def plan_neurons(ranking: Ranking, spec: PlanSpec, arena: Arena) -> PruningPlan:
    """The plan of neurons that a spec keeps of a ranking."""
    scope, asked = spec.spread.scope, spec.budget
    schedule, parameters = f"neurons by {scope}", dict[str, Any](scope=str(scope))
    sensitivity = ranking.curves_for(spec) if spec.spread.is_measured else None
    if sensitivity:
        arena = arena.measured(sensitivity)
        schedule, parameters = MEASURED, parameters | sensitivity.to_dict()
    contest, experts = arena.contest, arena.experts
    budget = arena.budget(asked, ranking.model)
    neurons = contest.kept(contest.removed(budget), experts)
    if asked.target_size or asked.shrink:
        parameters["widths"] = asked.widths.to_json()
    provenance = ranking.provenance_of_neurons(spec, budget, schedule, parameters)
    measured = sensitivity.note(sensitivity.shares(contest.pools, budget)) if sensitivity else None
    rounded = rounding_note(budget, [pool.size for pool in contest.pools], NEURONS)
    notes = (*ranking.choice.notes, measured, rounded)
    plan = plan_with(ranking.model, experts, neurons, provenance)
    return replace(plan, notes=tuple(filter(None, notes)))


def plan_with(
    model: MoEModel,
    experts: dict[int, tuple[int, ...]],
    neurons: KeptNeurons,
    provenance: Provenance,
) -> PruningPlan:
    """A plan of neurons, and of whole experts in some layers."""
    plan = PruningPlan(model_ref(model), experts, provenance, NEURON_GRANULARITY, neurons)
    return fit_plan(plan, model)
