"""The task of bins: experts or neurons in parts by a criterion, and the loss without each part."""

import time

from analysis.drain import drain
from analysis.model import MoEModel, load_model_index
from analysis.progress import Progress
from analysis.stats.store import StatsStore, stats_store
from pruning.evaluate.bins import Bin, bin_table, expert_bins, neuron_bins
from pruning.evaluate.bins_record import BinsRecord, BinsStore, RankedBy
from pruning.evaluate.result import Evaluation
from pruning.plan import ATOMIC_GRANULARITY
from pruning.planning.ranking import select_measured
from pruning.requests.evaluation import BinsRequest
from pruning.tasks import Steps
from pruning.tasks.evaluation import drawn_corpora
from pruning.tasks.loading import loaded_model, run_settings
from pruning.tasks.sweep import plan_request


def bins_run(request: BinsRequest) -> Steps[BinsRecord]:
    """What removing each bin of experts or neurons adds to the loss, on the first corpus.

    The record is kept beside the statistics; where it is there already, no model is loaded.
    """
    from analysis.calibration.loading import resolve_dtype
    from pruning.evaluate.candidate import MeasureSettings, run_candidate
    from pruning.evaluate.full_side import run_full
    from pruning.evaluate.run import how_made
    from pruning.evaluate.samples import make_samples

    model = load_model_index(request.model, revision=request.revision)
    store = stats_store(request.stats_dir)
    ranked, bins = yield from _binned(request, model, store)
    (drawn, *_) = yield from drawn_corpora(request, model, store)
    settings = run_settings(request, drawn.sequences.longest)
    changing = {"dtype": resolve_dtype(settings.dtype, model), "seed": settings.seed}
    kept = BinsStore(store.directories)
    record = kept.find(BinsRecord.new(model, ranked, bins, drawn.corpus, changing))
    if record.is_measured:
        yield Progress("cached", len(bins), len(bins), "bins", "these bins are measured already")
        return record
    started, found = time.monotonic(), dict[int, Evaluation]()
    samples = make_samples(drawn.sequences, request.batch_size)
    measured = MeasureSettings(("nll",), settings.seed)
    yield Progress("loading the model", 0, len(bins), "bins")
    with loaded_model(model, settings) as loaded:
        full = yield from run_full(loaded, samples, folder=request.hidden_states_dir)
        for each in bins:
            yield Progress("removing bins", len(found), len(bins), "bins")
            task = run_candidate(loaded, model.family, each.plan, full, measured)
            found[each.number] = drain(task)
    first = found[bins[0].number]
    record = record.with_results(
        bin_table(bins, found, seed=settings.seed),
        (first.full["nll"].mean, first.num_samples, first.num_tokens),
        how_made(settings, time.monotonic() - started),
    )
    kept.save(record)
    return record


def _binned(
    request: BinsRequest, model: MoEModel, store: StatsStore
) -> Steps[tuple[RankedBy, list[Bin]]]:
    """What orders the experts or neurons, and the bins of that order."""
    how, is_atomic = request.binning, request.granularity == ATOMIC_GRANULARITY
    own = {"atom_scope": how.scope} if is_atomic else {}
    ranking = yield from select_measured(
        plan_request(request, request.criterion, "0", own), model, store
    )
    ranked = RankedBy(
        request.criterion,
        request.gate if ranking.criterion.uses_gate else "",
        ranking.choice.corpora,
        tuple(run.manifest.run_id for run in ranking.choice.runs),
        request.granularity,
        how,
    )
    if is_atomic:
        return ranked, neuron_bins(ranking.neurons, model, how)
    return ranked, expert_bins(ranking.table, model, how)
