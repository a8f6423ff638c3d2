"""What charts of a request of the command line are drawn from."""

from dataclasses import replace

from analysis.cache_keys import cache_of_one_run
from analysis.model.moe_model import MoEModel
from analysis.stats.store import StatsStore
from app.choices import Choices
from app.loaded import CurrentPlan, Loaded
from pruning.planning.comparing import check_alike, order_asked_of, plan_held, second_spec
from pruning.requests.ranking import DrawRequest
from pruning.study import Study


def loaded_of(request: DrawRequest, model: MoEModel, store: StatsStore) -> Loaded:
    """What charts of two plans are drawn from; it keeps what it has computed once."""
    spec, ranking = request.plan, request.plan.ranking
    beside = None if request.with_plan is None else plan_held(request.with_plan, model)
    if beside:
        check_alike(spec.ranking.granularity, beside)
    b = order_asked_of(beside, model) if beside else second_spec(spec, request)
    choices = Choices(
        spec, b.ranking.rule, corpora=ranking.corpora, gate=ranking.gate, second=request
    )
    study = replace(Study.of(request, model, store), cached=cache_of_one_run())
    loaded = Loaded(study, choices)
    return replace(loaded, beside=CurrentPlan(beside)) if beside else loaded
