"""Tasks of evaluation: plans on held-out text, and criteria against sparsities."""

from collections.abc import Sequence
from functools import cache

from analysis.model import MoEModel, load_model_index
from analysis.progress import Progress
from analysis.stats.store import StatsStore, stats_store
from pruning.evaluate.drawing import DrawnSamples, draw
from pruning.evaluate.record import EvaluationRecord, EvaluationStore
from pruning.measured_routing import measured_routing
from pruning.plan import PruningPlan, fit_plan, keep_all, plan_from_dict
from pruning.requests.evaluation import (
    EvaluateRequest,
    HeldOutRequest,
    MeasureRequest,
    SweepRequest,
)
from pruning.tasks import Steps
from pruning.tasks.apart import open_checked
from pruning.tasks.loading import quiet_transformers, run_settings
from pruning.tasks.sweep import sweep_plans

Records = Steps[list[EvaluationRecord]]


def evaluate_run(request: EvaluateRequest) -> Records:
    """Evaluate the plans on each corpus; stores results next to the statistics."""
    model = load_model_index(request.model, revision=request.revision)
    plans = [fit_plan(plan_from_dict(raw), model) for raw in request.plans]
    return (yield from _evaluated(request, model, plans or [keep_all(model)]))


def sweep_run(request: SweepRequest) -> Records:
    """Evaluate every criterion at every sparsity, and the unpruned model; by corpus and plan."""
    model = load_model_index(request.model, revision=request.revision)
    plans = yield from sweep_plans(request, model, stats_store(request.stats_dir))
    return (yield from _evaluated(request, model, [keep_all(model), *plans]))


def _evaluated(request: MeasureRequest, model: MoEModel, plans: Sequence[PruningPlan]) -> Records:
    """Records by corpus and then by plan."""
    from pruning.evaluate.run import Evaluations, run_evaluations

    quiet_transformers()
    store = stats_store(request.stats_dir)
    drawn = yield from drawn_corpora(request, model, store)
    work = Evaluations(
        model,
        plans,
        drawn,
        request.measured,
        run_settings(request, max(each.sequences.longest for each in drawn)),
        EvaluationStore(store.directories),
        measured_routing(plans, store),
    )
    return (yield from run_evaluations(work))


def drawn_corpora(
    request: HeldOutRequest, model: MoEModel, store: StatsStore
) -> Steps[list[DrawnSamples]]:
    """The samples of every corpus of a request."""
    from analysis.calibration.loading import load_tokenizer

    tokenizer = cache(lambda: load_tokenizer(model, trust_remote_code=request.trust_remote_code))
    runs = [run.manifest for run in store.of_model(model.identity, "routed")]
    drawn = []
    for number, corpus in enumerate(request.corpora):
        yield Progress("reading the corpora", number, len(request.corpora), "corpora")
        source = open_checked(corpus, store, allowed=request.allow_test_set)
        drawn.append(draw(corpus, source, runs, request.sample_settings(corpus), tokenizer))
    return drawn
