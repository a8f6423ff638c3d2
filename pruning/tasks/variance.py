"""The task of hidden states: their variance after each layer, full against pruned."""

import time
from collections.abc import Mapping

from analysis.model import MoEModel, load_model_index
from analysis.progress import Progress
from analysis.stats.store import StatsStore, stats_store
from pruning.evaluate.drawing import DrawnSamples
from pruning.evaluate.variance_record import VarianceRecord, VarianceStore
from pruning.plan import PruningPlan, fit_plan, keep_all, plan_from_dict
from pruning.requests.variance import VarianceRequest
from pruning.tasks import JobResult, Steps
from pruning.tasks.evaluation import draw_all, run_settings
from pruning.tasks.loading import loaded_model
from pruning.tasks.sweep import sweep_plans

FULL = "full"


def variance_task(request: VarianceRequest) -> Steps[JobResult]:
    """Job form of `variance_run`."""
    records = yield from variance_run(request)
    return {"variances": [record.record_id for record in records.values()]}


def variance_run(request: VarianceRequest) -> Steps[dict[str, VarianceRecord]]:
    """Variance of hidden states of the full model and of what plans leave, on the first corpus.

    Records are kept beside the statistics; what is there already is not measured again.

    Returns:
        Name of each plan -> its record; the full model first.
    """
    from analysis.calibration.loading import resolve_dtype
    from pruning.evaluate.hidden_states import NUM_TOKENS

    model = load_model_index(request.model, revision=request.revision)
    store = stats_store(request.stats_dir)
    plans = yield from _plans(request, model, store)
    (drawn, *_) = yield from draw_all(request, model, store)
    settings = run_settings(request, drawn.sequences.longest)
    dtype = resolve_dtype(settings.dtype, model)
    changing = {"dtype": dtype, "seed": settings.seed, "tokens": NUM_TOKENS}
    kept = VarianceStore(store.directories)
    records = {
        name: kept.find(VarianceRecord.new(model, plan, drawn.corpus, changing))
        for name, plan in plans.items()
    }
    missing = {name: plans[name] for name, each in records.items() if not each.is_measured}
    if not missing:
        yield Progress("cached", len(plans), len(plans), "models", "all of it is measured already")
        return records
    yield from _measure(request, model, drawn, records, missing)
    return records


def _measure(
    request: VarianceRequest,
    model: MoEModel,
    drawn: DrawnSamples,
    records: dict[str, VarianceRecord],
    missing: Mapping[str, PruningPlan],
) -> Steps[None]:
    """Fill the missing records; each is saved as soon as it is there."""
    from pruning.evaluate.hidden_states import NUM_TOKENS, draw_tokens, run_variance
    from pruning.evaluate.run import how_made
    from pruning.evaluate.samples import make_samples

    settings = run_settings(request, drawn.sequences.longest)
    kept = VarianceStore(stats_store(request.stats_dir).directories)
    samples = make_samples(drawn.sequences, request.batch_size)
    chosen = draw_tokens(samples, NUM_TOKENS, settings.seed)
    num_tokens = sum(int(mask.sum()) for mask in chosen)
    yield Progress("loading the model", 0, len(missing), "models")
    with loaded_model(model, settings) as loaded:
        for name, plan in missing.items():
            started = time.monotonic()
            applied = None if name == FULL else plan
            values = yield from run_variance(loaded, model.family, applied, samples, chosen)
            made = how_made(settings, time.monotonic() - started)
            records[name] = records[name].with_results(values.tolist(), num_tokens, made)
            kept.save(records[name])


def _plans(
    request: VarianceRequest, model: MoEModel, store: StatsStore
) -> Steps[dict[str, PruningPlan]]:
    plans = {FULL: keep_all(model)}
    for name, raw in zip(request.names, request.plans, strict=True):
        plans[name] = fit_plan(plan_from_dict(raw), model)
    if request.sweep is not None:
        for plan in (yield from sweep_plans(request.sweep, model, store)):
            plans[f"{plan.provenance.criterion} {plan.provenance.sparsity}"] = plan
    return plans
