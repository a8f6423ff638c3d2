"""Tasks of evaluation: plans on held-out text, and criteria against sparsities."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING

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
from pruning.requests.options import DEFAULT_SEED
from pruning.tasks import JobResult, Steps
from pruning.tasks.apart import open_checked
from pruning.tasks.loading import placement_of, quiet_transformers
from pruning.tasks.sweep import sweep_plans

if TYPE_CHECKING:
    from analysis.calibration.loading import CalibrationSettings
    from analysis.corpora import Tokenizer

Records = Steps[list[EvaluationRecord]]


def evaluate_run(request: EvaluateRequest) -> Records:
    """Evaluate the plans on each corpus; results are kept beside the statistics."""
    model = load_model_index(request.model, revision=request.revision)
    plans = [fit_plan(plan_from_dict(raw), model) for raw in request.plans]
    return (yield from evaluate_plans(request, model, plans or [keep_all(model)]))


def sweep_run(request: SweepRequest) -> Records:
    """Evaluate every criterion at every sparsity, and the unpruned model; by corpus and plan."""
    model = load_model_index(request.model, revision=request.revision)
    plans = yield from sweep_plans(request, model, stats_store(request.stats_dir))
    return (yield from evaluate_plans(request, model, [keep_all(model), *plans]))


def evaluate_plans(
    request: MeasureRequest, model: MoEModel, plans: Sequence[PruningPlan]
) -> Records:
    """Evaluate these plans as a request asks for; records by corpus and then by plan."""
    from pruning.evaluate.run import Evaluations, run_evaluations

    quiet_transformers()
    store = stats_store(request.stats_dir)
    drawn = yield from draw_all(request, model, store)
    work = Evaluations(
        model,
        plans,
        drawn,
        request.measured,
        run_settings(request, max(each.sequences.longest for each in drawn)),
        EvaluationStore(store.directories),
        request.hidden_states_dir,
        measured_routing(plans, store),
    )
    return (yield from run_evaluations(work))


def draw_all(
    request: HeldOutRequest, model: MoEModel, store: StatsStore
) -> Steps[list[DrawnSamples]]:
    """The samples of every corpus of a request."""
    runs = [run.manifest for run in store.of_model(model.identity, "routed")]
    drawn = []
    for number, corpus in enumerate(request.corpora):
        yield Progress("reading the corpora", number, len(request.corpora), "corpora")
        source = open_checked(corpus, store, allowed=request.allow_test_set)
        wanted = request.sample_settings(corpus)
        drawn.append(draw(corpus, source, runs, wanted, _tokenizer_of(request, model)))
    return drawn


def _tokenizer_of(request: HeldOutRequest, model: MoEModel) -> "Callable[[], Tokenizer]":
    from analysis.calibration.loading import load_tokenizer

    return cache(lambda: load_tokenizer(model, trust_remote_code=request.trust_remote_code))


def run_settings(request: HeldOutRequest, longest: int) -> "CalibrationSettings":
    """How the model runs; `longest` is the length of the longest sample."""
    from analysis.calibration.loading import CalibrationSettings

    return CalibrationSettings(
        seq_len=longest,
        seed=DEFAULT_SEED if request.seed is None else request.seed,
        dtype=request.dtype,
        device=request.device,
        batch_size=request.batch_size,
        trust_remote_code=request.trust_remote_code,
        attention=request.attention,
        placement=placement_of(request),
    )


def evaluate_task(request: EvaluateRequest) -> Steps[JobResult]:
    """Job form of `evaluate_run`."""
    records = yield from evaluate_run(request)
    return {"evaluations": [record.record_id for record in records]}


def sweep_task(request: SweepRequest) -> Steps[JobResult]:
    """Job form of `sweep_run`."""
    records = yield from sweep_run(request)
    return {"evaluations": [record.record_id for record in records]}
