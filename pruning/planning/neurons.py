"""Plans of neurons: a ranking, a budget and a scope -> the kept neurons."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from analysis.cache_keys import Numbered, most_results
from analysis.errors import PlanError
from analysis.files.json_text import parse_json_once
from analysis.files.own_package import tool_version
from analysis.files.text_file import read_text_file
from analysis.model.moe_model import MoEModel
from analysis.model.widths import expert_widths
from analysis.numbers.arrays import NeuronScores
from pruning.measures.curves import Sensitivity
from pruning.plan.budget import Budget, check_removes, rounding_note
from pruning.plan.kept_neurons import KeptNeurons, KeptWidths, check_cuttable, neurons_from_json
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
    plan_from_dict,
)
from pruning.planning.choice import row_counts
from pruning.planning.ranking import Ranking, recorded, sensitivity_for
from pruning.schedules import MEASURED
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

    def measured(self, sensitivity: Sensitivity) -> "Arena":
        """The same neurons, with budgets spread over the layers as their sensitivity says."""
        return replace(self, contest=replace(self.contest, spread=sensitivity.shares))

    def plan(self, model: MoEModel, budget: Budget, cut: Collection[int]) -> PruningPlan:
        """The plan that spends a budget in these layers; the others stay whole."""
        removed, experts = self._within(budget, cut)
        return _plan(model, experts, self.contest.kept(removed, experts), Provenance())

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


def check_neurons(spec: PlanSpec, model: MoEModel) -> None:
    """Refuse what is impossible whatever the statistics, before any are made."""
    if spec.spread.kept_neurons is not None:
        plan_of_file(spec, model)
        return
    check_cuttable(model)
    same = {
        layer: tuple(np.zeros(width) for width in widths)
        for layer, widths in expert_widths(model).items()
    }
    _arena(model, same, spec).budget(spec.budget, model)


@most_results(12)
def arena_of(ranking: Ranking, spec: PlanSpec) -> Arena:
    """The neurons that compete under a spec's scope and constraints, whatever its budget."""
    check_cuttable(ranking.model)
    return _arena(ranking.model, ranking.neurons, ranking.settled(spec))


def _arena(model: MoEModel, saliency: NeuronScores, spec: PlanSpec) -> Arena:
    limits = spec.constraints
    experts = kept_experts(model.layers, limits)
    rooms = neuron_rooms(expert_widths(model), limits)
    return Arena(Contest(saliency, rooms, spec.spread.scope), experts)


def plan_neurons(ranking: Ranking, spec: PlanSpec, arena: Arena) -> PruningPlan:
    """The plan of neurons that a spec keeps of a ranking."""
    scope, asked = spec.spread.scope, spec.budget
    schedule, parameters = f"neurons by {scope}", dict[str, Any](scope=str(scope))
    sensitivity = sensitivity_for(ranking, spec) if spec.spread.is_measured else None
    if sensitivity:
        arena = arena.measured(sensitivity)
        schedule, parameters = MEASURED, parameters | sensitivity.to_dict()
    contest, experts, choice = arena.contest, arena.experts, ranking.choice
    budget = arena.budget(asked, ranking.model)
    neurons = contest.kept(contest.removed(budget), experts)
    if asked.target_size or asked.shrink:
        parameters["widths"] = asked.widths.to_json()
    provenance = Provenance(
        criterion=spec.ranking.criterion,
        corpora=choice.corpora,
        runs=tuple(run.manifest.run_id for run in choice.runs),
        schedule=schedule,
        sparsity=asked.sparsity or "",
        tool_version=tool_version(),
        budget=budget.to_dict(),
        schedule_parameters=parameters,
        constraints=ranking.settled(spec).constraints.to_dict(),
        spec=recorded(spec, ranking),
        rows=row_counts(choice.runs),
    )
    measured = sensitivity.note(sensitivity.shares(contest.pools, budget)) if sensitivity else None
    rounded = rounding_note(budget, [pool.size for pool in contest.pools], NEURONS)
    notes = (*choice.notes, measured, rounded)
    plan = _plan(ranking.model, experts, neurons, provenance)
    return replace(plan, notes=tuple(filter(None, notes)))


def plan_of_file(spec: PlanSpec, model: MoEModel) -> PruningPlan:
    """The plan of `kept_neurons`: a plan.json of neurons, or its `kept_neurons` alone."""
    path = spec.spread.kept_neurons
    if path is None:
        raise ValueError("the spec names no file")
    provenance = Provenance(
        criterion=spec.ranking.criterion,
        schedule="file",
        tool_version=tool_version(),
        schedule_parameters={"file": path.name},
        spec=recorded(spec),
    )
    try:
        raw = parse_json_once(read_text_file("file", path))
    except ValueError as error:
        raise PlanError(f"{path} is not valid JSON: {error}.") from error
    if isinstance(raw, dict) and "schema_version" in raw:
        plan = fit_plan(plan_from_dict(raw), model)
        return _plan(model, dict(plan.kept), plan.kept_neurons, provenance)
    neurons = neurons_from_json(raw.get("kept_neurons", raw) if isinstance(raw, dict) else raw)
    return _plan(model, {}, neurons, provenance)


def _plan(
    model: MoEModel,
    experts: dict[int, tuple[int, ...]],
    neurons: KeptNeurons,
    provenance: Provenance,
) -> PruningPlan:
    plan = PruningPlan(model_ref(model), experts, provenance, NEURON_GRANULARITY, neurons)
    return fit_plan(plan, model)
