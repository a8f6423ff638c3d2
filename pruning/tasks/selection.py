"""What a request selects, from the statistics that are there."""

from collections.abc import Generator

from analysis.model import load_model_index
from analysis.progress import Progress
from analysis.stats.store import stats_store
from pruning.planning.ranking import Selection, select_measured
from pruning.requests.plan import PlanRequest


def selection_for(request: PlanRequest) -> Generator[Progress, None, Selection]:
    """The selection of a request; weights are measured first where they are needed.

    Raises:
        UserError: no statistics that fit.
    """
    model = load_model_index(request.model, revision=request.revision)
    return (yield from select_measured(request, model, stats_store(request.stats_dir)))
