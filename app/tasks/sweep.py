"""The plans of a sweep: every criterion at every sparsity."""

from collections.abc import Generator

from analysis.model import MoEModel
from analysis.progress import Progress
from analysis.stats.store import StatsStore
from app.tasks.calibration import weights_measured
from pruning.plan import ATOMIC_GRANULARITY, PruningPlan, fit_plan
from pruning.planning.neurons import decide_neurons, neuron_evidence
from pruning.planning.ranking import select
from pruning.requests.base import SelectRequest, validated
from pruning.requests.criteria import reads_text
from pruning.requests.evaluation import BinsRequest, SweepRequest
from pruning.requests.neurons import NeuronRequest

Plans = Generator[Progress, None, list[PruningPlan]]


def sweep_plans(request: SweepRequest, model: MoEModel, store: StatsStore) -> Plans:
    """The plans of a sweep, by criterion and then by sparsity.

    Raises:
        UserError: no statistics that fit, or a sparsity that the model cannot meet.
    """
    plans = []
    for name in request.criteria:
        if request.granularity == ATOMIC_GRANULARITY:
            plans += yield from _plans_of_neurons(request, name, model, store)
            continue
        yield from weights_measured(name, model, store)
        for each in request.sparsities:
            asked = expert_request(request, name, each, schedule=request.schedule)
            plans.append(select(asked, model, store).plan())
    return [fit_plan(plan, model) for plan in plans]


def expert_request(
    request: SweepRequest | BinsRequest, criterion: str, sparsity: str, schedule: str = "uniform"
) -> SelectRequest:
    """The plan of whole experts by one criterion that a request asks for."""
    values = {
        "model": request.model,
        "criterion": criterion,
        "sparsity": sparsity,
        "corpora": request.calibrated_on if reads_text(criterion) else (),
        "gate": request.gate,
        "schedule": schedule,
        "stats_dir": request.stats_dir,
    }
    made: SelectRequest = validated(SelectRequest, values)
    return made


def neuron_request(
    request: SweepRequest | BinsRequest, criterion: str, scope: str, sparsity: str
) -> NeuronRequest:
    """The plan of neurons by one criterion that a request asks for."""
    values = {
        "model": request.model,
        "criterion": criterion,
        "sparsity": sparsity,
        "corpora": request.calibrated_on if reads_text(criterion) else (),
        "atom_scope": scope,
        "stats_dir": request.stats_dir,
    }
    made: NeuronRequest = validated(NeuronRequest, values)
    return made


def _plans_of_neurons(
    request: SweepRequest, criterion: str, model: MoEModel, store: StatsStore
) -> Plans:
    asked = [
        neuron_request(request, criterion, request.atom_scope, each) for each in request.sparsities
    ]
    evidence = yield from neuron_evidence(asked[0], model, store)
    return [decide_neurons(each, model, evidence).plan for each in asked]
