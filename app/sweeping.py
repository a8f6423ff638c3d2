"""The plans of a sweep: every criterion at every sparsity."""

from collections.abc import Generator, Sequence
from dataclasses import dataclass

from analysis.choose import parse_corpus_weight
from analysis.criteria import get_criterion
from analysis.errors import PlanError
from analysis.model import MoEModel
from analysis.neuron_norms import NEURON_NORMS, NeuronScores, neuron_norms
from analysis.neurons import choose_neurons, neuron_saliency
from analysis.progress import Progress
from analysis.sparsity import parse_sparsity
from analysis.store import StatsStore, load_expert_stats
from app.evaluation_requests import SweepRequest
from app.selection import select
from app.task_requests import SelectRequest, validated
from pruning.active import Routing, routing_of
from pruning.atoms.selection import AtomScope, parse_scope, select_atoms
from pruning.plan import (
    ATOMIC_GRANULARITY,
    Provenance,
    PruningPlan,
    fit_plan,
    model_ref,
    tool_version,
)

Plans = Generator[Progress, None, list[PruningPlan]]


def sweep_plans(request: SweepRequest, model: MoEModel, store: StatsStore) -> Plans:
    """The plans of a sweep, by criterion and then by sparsity.

    Raises:
        UserError: no statistics that fit, or a sparsity that the model cannot meet.
    """
    if request.granularity == ATOMIC_GRANULARITY:
        return (yield from _plans_of_neurons(request, model, store))
    plans = []
    for name in request.criteria:
        yield from weights_measured(name, model, store)
        plans += [_plan(request, name, each, model, store) for each in request.sparsities]
    return plans


def weights_measured(
    criterion: str, model: MoEModel, store: StatsStore
) -> Generator[Progress, None, None]:
    """Measure the model's weights, if the criterion reads them and nobody has."""
    from analysis.weights import weight_statistics

    reads_weights = get_criterion(criterion).source == "weights"
    if reads_weights and not store.of_model(model.identity, "weights"):
        yield from weight_statistics(model, store)


def _plan(
    request: SweepRequest, criterion: str, sparsity: str, model: MoEModel, store: StatsStore
) -> PruningPlan:
    reads_text = get_criterion(criterion).source == "routed"
    values = {
        "model": request.model,
        "criterion": criterion,
        "sparsity": sparsity,
        "corpora": request.calibrated_on if reads_text else (),
        "gate": request.gate,
        "schedule": request.schedule,
        "stats_dir": request.stats_dir,
    }
    return fit_plan(select(validated(SelectRequest, values), model, store).plan(), model)


def _plans_of_neurons(request: SweepRequest, model: MoEModel, store: StatsStore) -> Plans:
    scope, plans = parse_scope(request.atom_scope), []
    for name in request.criteria:
        ranked = yield from rank_neurons(
            name,
            model,
            store,
            request.calibrated_on,
            across_layers=scope is AtomScope.GLOBAL,
        )
        for sparsity in request.sparsities:
            provenance = Provenance(
                criterion=name,
                schedule=f"neurons by {scope}",
                sparsity=sparsity,
                schedule_parameters={"scope": str(scope)},
                tool_version=tool_version(),
                corpora=ranked.corpora,
                runs=ranked.runs,
            )
            atoms = select_atoms(ranked.saliency, parse_sparsity(sparsity), scope)
            made = PruningPlan(model_ref(model), {}, provenance, ATOMIC_GRANULARITY, atoms)
            plans.append(fit_plan(made, model))
    return plans


@dataclass(frozen=True, slots=True, eq=False)
class RankedNeurons:
    """A number for every neuron, and the corpora and runs that it comes from."""

    saliency: NeuronScores
    corpora: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()


def rank_neurons(
    name: str, model: MoEModel, store: StatsStore, corpora: Sequence[str], *, across_layers: bool
) -> Generator[Progress, None, RankedNeurons]:
    """A number for every neuron by a criterion's name, from weights or statistics.

    Args:
        name: of a criterion that scores neurons.
        model: whose neurons.
        store: statistics.
        corpora: whose statistics rank, CORPUS or CORPUS:WEIGHT.
        across_layers: neurons of different layers are compared.

    Raises:
        UserError: the criterion scores no neurons or does not compare layers, or no statistics
            fit.
    """
    if name == NEURON_NORMS:
        return RankedNeurons((yield from neuron_norms(model)))
    criterion = get_criterion(name)
    if criterion.within_layers and across_layers:
        raise PlanError(
            f"{criterion.label} does not compare neurons of different layers; let them "
            "compete within a layer."
        )
    wanted = [parse_corpus_weight(text) for text in corpora]
    chosen = choose_neurons(criterion, store, model, wanted)
    runs = tuple(run.manifest.run_id for run in chosen.runs)
    return RankedNeurons(neuron_saliency(criterion, chosen.stats), chosen.corpora, runs)


def measured_routing(plans: Sequence[PruningPlan], store: StatsStore) -> Routing | None:
    """How often experts were chosen, where plans leave experts of different widths.

    Of the runs that ranked the neurons the first, else the newest of the model; None where nothing
    was measured or only whole experts go.
    """
    cut = [plan for plan in plans if plan.kept_atoms]
    if not cut:
        return None
    named = [store.get(run) for plan in cut for run in plan.provenance.runs]
    known = store.of_model(cut[0].model.identity, "routed")
    newest = sorted(known, key=lambda run: str(run.manifest.made.get("created_at")), reverse=True)
    runs = named or newest
    return routing_of(load_expert_stats(runs[0])) if runs else None
