"""What requests select by the statistics that are there, and the plans of a sweep."""

from typing import Any

from analysis.criteria import get_criterion
from analysis.model import MoEModel, load_model_index
from analysis.stats.store import StatsStore, stats_store
from pruning.plan import ATOMIC_GRANULARITY, PruningPlan, fit_plan
from pruning.planning.make import make_plan
from pruning.planning.measured import with_sensitivity
from pruning.planning.ranking import Selection, select_measured
from pruning.requests.base import validated
from pruning.requests.evaluation import BinsRequest, SweepRequest
from pruning.requests.plan import PlanRequest
from pruning.requests.sensitivity import SensitivityRequest
from pruning.schedules import MEASURED
from pruning.tasks import Steps


def selection_for(request: PlanRequest) -> Steps[Selection]:
    """The selection of a request; weights are measured first where they are needed."""
    model = load_model_index(request.model, revision=request.revision)
    return (yield from select_measured(request, model, stats_store(request.stats_dir)))


def sweep_plans(
    request: SweepRequest, model: MoEModel, store: StatsStore
) -> Steps[list[PruningPlan]]:
    """The plans of a sweep, by criterion and then by sparsity."""
    own: dict[str, Any] = {"schedule": request.schedule}
    if request.granularity == ATOMIC_GRANULARITY and request.schedule != MEASURED:
        own = {"atom_scope": request.atom_scope}
    plans = []
    for criterion in request.criteria:
        asked = [plan_request(request, criterion, each, own) for each in request.sparsities]
        selection = yield from select_measured(asked[0], model, store)
        ranking = with_sensitivity(selection, asked[0], store)
        plans += [make_plan(ranking, each).plan for each in asked]
    return [fit_plan(plan, model) for plan in plans]


def plan_request(
    request: SweepRequest | BinsRequest | SensitivityRequest,
    criterion: str,
    sparsity: str,
    own: dict[str, Any],
) -> PlanRequest:
    """The plan by one criterion that a request asks for; `own` has what its granularity adds."""
    reads_text = get_criterion(criterion).source == "routed"
    values = {
        "model": request.model,
        "granularity": request.granularity,
        "criterion": criterion,
        "sparsity": sparsity,
        "corpora": request.calibrated_on if reads_text else (),
        "gate": request.gate,
        "stats_dir": request.stats_dir,
        **own,
    }
    made: PlanRequest = validated(PlanRequest, values)
    return made
