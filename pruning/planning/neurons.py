"""A selection of neurons: criterion, statistics, budget and scope -> plan."""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from analysis.criteria import Criterion, get_criterion
from analysis.errors import PlanError
from analysis.json_text import parse_json_once
from analysis.model import MoEModel
from analysis.progress import Progress
from analysis.ranking.neurons import (
    blend_neurons,
    choose_neurons,
    neuron_saliency,
    unmeasured_saliency,
)
from analysis.ranking.norms import NeuronScores, neuron_norms
from analysis.stats.blend import Part
from analysis.stats.choose import Choice, corpus_names, parse_corpus_weight
from analysis.stats.neurons import NeuronStats
from analysis.stats.store import Run, StatsStore
from analysis.widths import expert_widths, quantised_role
from pruning.active import Routing
from pruning.atoms.budget import atom_count_budget, atom_sparsity_budget, budget_note
from pruning.atoms.kept import KeptAtoms, atoms_from_json
from pruning.atoms.rooms import atom_rooms, kept_experts
from pruning.atoms.selection import Contest
from pruning.atoms.sizes import atom_sizer
from pruning.atoms.target import AtomTarget, atom_params_budget, atom_size_budget
from pruning.budget import Budget
from pruning.plan import (
    ATOMIC_GRANULARITY,
    Provenance,
    PruningPlan,
    fit_plan,
    model_ref,
    plan_from_dict,
    tool_version,
)
from pruning.requests.neurons import NeuronRequest


@dataclass(frozen=True, eq=False)
class NeuronEvidence:
    """A number for every neuron, and where it comes from.

    Args:
        saliency: higher stays.
        runs: what was read; none where the weights alone rank.
        corpora: their texts, with weights.
        notes: what a person should know of the choice of runs, one line each.
        routing: how often each expert was chosen there; None without a calibration.
    """

    saliency: NeuronScores
    runs: tuple[Run, ...] = ()
    corpora: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    routing: Routing | None = None


@dataclass(frozen=True, eq=False)
class Arena:
    """The neurons that compete under the constraints of a request, whatever its budget.

    Args:
        contest: the neurons.
        experts: layer -> experts that stay, of layers that lose whole ones.
    """

    contest: Contest
    experts: dict[int, tuple[int, ...]]

    def budget(self, request: NeuronRequest, model: MoEModel) -> Budget:
        """How many neurons go.

        Raises:
            PlanError: a budget that the experts cannot meet.
        """
        if request.sparsity:
            return atom_sparsity_budget(self.contest.pools, request.sparsity)
        if request.remove is not None:
            return atom_count_budget(self.contest.pools, request.remove)
        sizer, share = atom_sizer(model), request.params_share
        if share is not None:
            return atom_params_budget(self.contest, sizer, share, self.experts)
        target = AtomTarget(request.target_gib or "", request.target_dtype, request.widths)
        return atom_size_budget(self.contest, sizer, target, self.experts)


@dataclass(frozen=True, eq=False)
class NeuronDecision:
    """A plan of neurons, and what a person should know of it, one line each."""

    plan: PruningPlan
    notes: tuple[str, ...] = ()


def neuron_evidence(
    request: NeuronRequest, model: MoEModel, store: StatsStore
) -> Generator[Progress, None, NeuronEvidence]:
    """What the criterion of a request says of every neuron; weights are measured at once.

    Raises:
        UserError: no statistics that fit, or weights that cannot be measured.
    """
    if request.reads_weights:
        return NeuronEvidence((yield from neuron_norms(model)))
    criterion = get_criterion(request.criterion)
    if criterion.source == "none":
        return NeuronEvidence(unmeasured_saliency(criterion, expert_widths(model)))
    corpora = [parse_corpus_weight(text) for text in request.corpora]
    chosen = choose_neurons(criterion, store, model, corpora, request.runs)
    return _evidence(criterion, chosen)


def evidence_of(request: NeuronRequest, parts: Sequence[Part]) -> NeuronEvidence:
    """What the criterion of a request says by these calibration runs.

    Raises:
        UserError: a run has no statistics of neurons, or they cannot be blended.
    """
    runs = tuple(part.run for part in parts)
    chosen = Choice(blend_neurons(parts), runs, corpus_names(parts))
    return _evidence(get_criterion(request.criterion), chosen)


def _evidence(criterion: Criterion, chosen: Choice[NeuronStats]) -> NeuronEvidence:
    saliency = neuron_saliency(criterion, chosen.stats)
    routing = neuron_routing(chosen.stats)
    return NeuronEvidence(saliency, chosen.runs, chosen.corpora, chosen.notes, routing)


def neuron_routing(stats: NeuronStats) -> Routing:
    """How often the router chose each expert of the whole model."""
    table = stats.table.drop_duplicates(["layer", "expert"])
    counts = {layer.index: [0.0] * layer.num_experts for layer in stats.manifest.model.layers}
    for layer, expert, tokens in table[["layer", "expert", "num_tokens"]].itertuples(index=False):
        counts[int(layer)][int(expert)] = float(tokens)
    return counts


def check_cuttable(model: MoEModel) -> None:
    """Refuse a model out of whose experts no neurons can be cut.

    Raises:
        PlanError: they are quantised.
    """
    if role := quantised_role(model):
        raise PlanError(
            f"The experts of {model.name} are quantised (they have {role}), and neurons cannot be "
            "cut out of that; dequantise the checkpoint first, or remove whole experts."
        )


def check_neurons(request: NeuronRequest, model: MoEModel) -> None:
    """Refuse what no statistics could make possible, before any are made.

    Raises:
        PlanError: experts that cannot be cut, a file that does not fit, or a budget and constraints
            that the experts cannot meet.
    """
    if request.kept_atoms is not None:
        plan_of_file(request, model)
        return
    check_cuttable(model)
    same = {
        layer: tuple(np.zeros(width) for width in widths)
        for layer, widths in expert_widths(model).items()
    }
    arena_of(request, model, same).budget(request, model)


def decide_neurons(
    request: NeuronRequest,
    model: MoEModel,
    evidence: NeuronEvidence,
    arena: Arena | None = None,
) -> NeuronDecision:
    """The neurons that stay.

    Args:
        request: criterion, budget and constraints.
        model: the source.
        evidence: what the criterion says.
        arena: of the same criterion, constraints and scope, if it is there already.

    Raises:
        PlanError: a budget and constraints that the experts cannot meet.
    """
    arena = arena or arena_of(request, model, evidence.saliency)
    contest, experts = arena.contest, arena.experts
    budget = arena.budget(request, model)
    atoms = contest.kept(contest.removed(budget), experts)
    parameters: dict[str, Any] = {"scope": request.atom_scope}
    if request.target_gib is not None:
        parameters["widths"] = request.widths.to_json()
    provenance = Provenance(
        criterion=request.criterion,
        corpora=evidence.corpora,
        runs=tuple(run.manifest.run_id for run in evidence.runs),
        schedule=f"neurons by {request.atom_scope}",
        sparsity=request.sparsity,
        tool_version=tool_version(),
        budget=budget.to_dict(),
        schedule_parameters=parameters,
        constraints=request.constraints.to_dict(),
    )
    note = budget_note(contest.pools, budget)
    plan = _plan(model, experts, atoms, provenance)
    return NeuronDecision(plan, (*evidence.notes, *([note] if note else [])))


def arena_of(request: NeuronRequest, model: MoEModel, saliency: NeuronScores) -> Arena:
    """The neurons that compete, by scope and constraints of a request; its budget is not read.

    Raises:
        PlanError: constraints that do not fit the model.
    """
    limits = request.constraints
    experts = kept_experts(model.layers, limits)
    rooms = atom_rooms(expert_widths(model), limits)
    return Arena(Contest(saliency, rooms, request.scope), experts)


def plan_of_file(request: NeuronRequest, model: MoEModel) -> NeuronDecision:
    """The plan of `kept_atoms`: a plan.json of neurons, or its `kept_atoms` alone.

    Raises:
        PlanError: a file that cannot be read, or neurons that the model lacks.
    """
    path = request.kept_atoms
    if path is None:
        raise ValueError("the request names no file")
    provenance = Provenance(
        criterion=request.criterion,
        schedule="file",
        tool_version=tool_version(),
        schedule_parameters={"file": path.name},
    )
    experts, atoms = _kept_in(path, model)
    return NeuronDecision(_plan(model, experts, atoms, provenance))


def _kept_in(path: Path, model: MoEModel) -> tuple[dict[int, tuple[int, ...]], KeptAtoms]:
    """Experts and neurons that stay; of a whole plan both, of anything else only neurons."""
    try:
        raw = parse_json_once(path.read_bytes())
    except OSError as error:
        raise PlanError(f"The file {path} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise PlanError(f"{path} is not valid JSON: {error}.") from error
    if isinstance(raw, dict) and "schema_version" in raw:
        plan = fit_plan(plan_from_dict(raw), model)
        return dict(plan.kept), plan.kept_atoms
    return {}, atoms_from_json(raw.get("kept_atoms", raw) if isinstance(raw, dict) else raw)


def _plan(
    model: MoEModel, experts: dict[int, tuple[int, ...]], atoms: KeptAtoms, provenance: Provenance
) -> PruningPlan:
    plan = PruningPlan(model_ref(model), experts, provenance, ATOMIC_GRANULARITY, atoms)
    return fit_plan(plan, model)
