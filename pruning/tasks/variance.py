"""The task of hidden states: their variance after each layer, full against pruned."""

import time

from analysis.model import MoEModel, load_model_index
from analysis.progress import Progress
from analysis.stats.store import StatsStore, stats_store
from pruning.evaluate.variance_record import VarianceRecord, VarianceStore
from pruning.plan import PruningPlan, fit_plan, keep_all, plan_from_dict
from pruning.requests.variance import VarianceRequest
from pruning.tasks import Steps
from pruning.tasks.evaluation import drawn_corpora
from pruning.tasks.loading import loaded_model, run_settings
from pruning.tasks.sweep import sweep_plans

FULL = "full"


def variance_run(request: VarianceRequest) -> Steps[dict[str, VarianceRecord]]:
    """Variance of hidden states of the full model and of what plans leave, on the first corpus.

    Records are kept beside the statistics, each as soon as it is there; what is there already is
    not measured again.

    Returns:
        Name of each plan -> its record; the full model first.
    """
    from analysis.calibration.loading import resolve_dtype
    from pruning.evaluate.hidden_states import NUM_TOKENS, draw_tokens, run_variance
    from pruning.evaluate.run import how_made
    from pruning.evaluate.samples import make_samples

    model = load_model_index(request.model, revision=request.revision)
    store = stats_store(request.stats_dir)
    plans = yield from _plans(request, model, store)
    (drawn, *_) = yield from drawn_corpora(request, model, store)
    settings = run_settings(request, drawn.sequences.longest)
    dtype = resolve_dtype(settings.dtype, model)
    changing = {"dtype": dtype, "seed": settings.seed, "tokens": NUM_TOKENS}
    kept = VarianceStore(store.directories)
    records = {
        name: kept.find(VarianceRecord.new(model, plan, drawn.corpus, changing))
        for name, plan in plans.items()
    }
    missing = [name for name, record in records.items() if not record.is_measured]
    if not missing:
        yield Progress("cached", len(plans), len(plans), "models", "all of it is measured already")
        return records
    samples = make_samples(drawn.sequences, request.batch_size)
    chosen = draw_tokens(samples, NUM_TOKENS, settings.seed)
    num_tokens = sum(int(mask.sum()) for mask in chosen)
    yield Progress("loading the model", 0, len(missing), "models")
    with loaded_model(model, settings) as loaded:
        for name in missing:
            started = time.monotonic()
            plan = None if name == FULL else plans[name]
            values = yield from run_variance(loaded, model.family, plan, samples, chosen)
            made = how_made(settings, time.monotonic() - started)
            records[name] = records[name].with_results(values.tolist(), num_tokens, made)
            kept.save(records[name])
    return records


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
