"""Bins: the loss that removing each bin of experts or neurons adds; see `pruning.records.bins`."""

import time
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Final

from pydantic import Field, model_validator

from analysis.criteria import check_ranks, get_criterion
from analysis.drain import drain
from analysis.errors import PlanError
from analysis.model.moe_model import MoEModel
from analysis.model.opening import load_model_index
from analysis.progress import LOADING, RUNNING_ORIGINAL, Costs, Parts, Progress, scaled
from analysis.stats.store import StatsStore, stats_store
from pruning.actions.action import Action, Call, Outcome, Table
from pruning.measures.points import WHOLE
from pruning.option import Option
from pruning.plan.plan import NEURON_GRANULARITY
from pruning.records.bins import (
    DEFAULT_BINS,
    Bin,
    Binning,
    BinsRecord,
    BinsStore,
    Order,
    RankedBy,
    Scope,
    expert_bins,
    neuron_bins,
    rank_agreement,
)
from pruning.requests.evaluation import HeldOutRequest, NamedCriterion, OneCorpus, RankedRequest
from pruning.requests.following import plan_command, usual_budget
from pruning.spec import options
from pruning.study import Study
from pruning.tasks import Steps
from pruning.tasks.evaluation import drawn_corpora
from pruning.tasks.loading import check_records_folder, loaded_model, run_settings

if TYPE_CHECKING:
    from pruning.search.costs import RunCosts

_REMOVING: Final = "removing bins"


class BinsRequest(RankedRequest, HeldOutRequest):
    """Experts or neurons in bins by a criterion, each bin removed alone."""

    asked_by = "bins"
    writes = "bins.csv"
    corpora: OneCorpus
    criterion: NamedCriterion
    bins: Annotated[int, Field(strict=True, ge=2, le=100), Option("How many bins.")] = DEFAULT_BINS
    scope: Annotated[
        Scope | None,
        Option(
            "Order within each layer, or of all. Default: layer for experts, global for neurons "
            "where the criterion compares layers."
        ),
    ] = None
    order: Annotated[
        Order,
        Option("Order of the bins; index: by position, as in HEAPr's Figure 3."),
    ] = "saliency"
    hidden_states_dir: options.HiddenStatesDir | None = None

    @model_validator(mode="after")
    def _can_rank(self) -> "BinsRequest":
        criterion, by_neuron = get_criterion(self.criterion), self.granularity == NEURON_GRANULARITY
        check_ranks(criterion, self.granularity)
        if by_neuron and self.scope == "global" and criterion.within_layers:
            raise PlanError(
                f"{self.criterion} does not compare neurons of different layers; use --scope layer."
            )
        return self

    @property
    def binning(self) -> Binning:
        """The bins: by default of experts within layers, and of all neurons if these compare."""
        within = get_criterion(self.criterion).within_layers
        over_all = self.granularity == NEURON_GRANULARITY and not within
        usual: Scope = "global" if over_all else "layer"
        return Binning(self.bins, self.scope or usual, self.order)


def _run(request: BinsRequest) -> Steps[BinsRecord]:
    """The loss that removing each bin of experts or neurons adds, on the first corpus.

    The record is stored with the statistics; if it exists, no model is loaded.
    """
    model = load_model_index(request.model, revision=request.revision)
    store = stats_store(request.stats_dir)
    check_records_folder(request.stats_dir, BinsStore(store.directories), model.identity)
    ranked, bins = yield from _order_and_bins(request, model, store)
    (drawn_samples, *_) = yield from drawn_corpora(request, model, store)
    from analysis.calibration.loading import resolve_dtype
    from pruning.engine.candidate import MeasureSettings, run_candidate
    from pruning.engine.full_side import run_full
    from pruning.engine.plan_sums import sums_of_plan
    from pruning.engine.run import how_made
    from pruning.measures.samples import make_samples
    from pruning.search.costs import RunCosts

    settings = run_settings(request, drawn_samples.sequences.longest)
    changing = {"dtype": resolve_dtype(settings.dtype, model), "seed": settings.seed}
    record_store = BinsStore(store.directories)
    record = record_store.find(BinsRecord.new(model, ranked, bins, drawn_samples.corpus, changing))
    yield from record_store.table.notes(model.identity)
    if not record.lacking:
        yield Progress("cached", len(bins), len(bins), "bins", "these bins are measured already")
        if not record.made:
            record_store.save(record := record.with_known())
        return record
    # Beside any bin the original model is measured, which may be all that lacks.
    missing = [part for part in bins if not record.knows(part.plan.digest)] or bins[:1]
    started, done = time.monotonic(), len(bins) - len(missing)
    samples = make_samples(drawn_samples.sequences, request.batch_size)
    measured = MeasureSettings(("nll",), settings.seed)
    counted = drawn_samples.sequences.num_tokens, int(samples.num_scored.sum())
    names = measured.measures
    costs = RunCosts.of(model, *counted, names, by_layers=False, keeps_original=False)
    whole = Parts(_parts(costs, len(bins)), {_REMOVING: done / len(bins)})
    yield Progress(LOADING, 0, len(bins), "bins", whole=whole.whole)
    with loaded_model(model, settings) as loaded:
        whole.finish(LOADING)
        running = run_full(loaded, samples, folder=request.hidden_states_dir)
        full = yield from whole.by_phase(running)
        with closing(full):
            for number, part in enumerate(missing, done):
                yield Progress(_REMOVING, number, len(bins), "bins", whole=whole.whole)
                task = run_candidate(loaded, model.family, part.plan, full, measured)
                plans = sums_of_plan(model, part.plan, drain(task), samples)
                record = record.with_bin(plans)
                # At once, so that a killed run loses no bin.
                record_store.table.add_plans(
                    model.identity, plans, record.where, how_made(settings)
                )
                whole.reach(_REMOVING, (number + 1) / len(bins))
            yield Progress(_REMOVING, len(bins), len(bins), "bins", whole=whole.whole)
    record = record.finished(how_made(settings, time.monotonic() - started))
    record_store.save(record)
    return record


def _parts(costs: "RunCosts", bins: int) -> dict[str, Costs]:
    """What loading, the original model and all bins cost."""
    removing = scaled(costs.run(WHOLE), bins)
    original = {"multiply": sum(costs.layers)}
    return {LOADING: {"read": costs.reading}, RUNNING_ORIGINAL: original, _REMOVING: removing}


def _order_and_bins(
    request: BinsRequest, model: MoEModel, store: StatsStore
) -> Steps[tuple[RankedBy, list[Bin]]]:
    """The order of the experts or neurons, and its bins."""
    how, by_neuron = request.binning, request.granularity == NEURON_GRANULARITY
    fields = {"neuron_scope": how.scope} if by_neuron else {}
    spec = request.spec_by(request.criterion, sparsity="0", **fields)
    ranking = yield from Study.of(request, model, store).rank(spec)
    ranked = RankedBy(
        request.criterion,
        request.gate if ranking.criterion.uses_gate else "",
        ranking.choice.corpora,
        tuple(run.manifest.run_id for run in ranking.choice.runs),
        request.granularity,
        how,
    )
    if by_neuron:
        return ranked, neuron_bins(ranking.neurons, model, how)
    return ranked, expert_bins(ranking.table, model, how)


def _tell(call: Call[BinsRequest], record: BinsRecord) -> Outcome:
    """How well the score orders what was measured, and the plan that comes next."""
    request, table = call.request, record.table
    first = "least salient first" if request.order == "saliency" else "by place"
    agreement = rank_agreement(table)
    model = load_model_index(request.model, revision=request.revision)
    neurons = ("--granularity", "neuron", "--shrink", "40%")
    budget = neurons if request.granularity == NEURON_GRANULARITY else usual_budget(model)
    return Outcome(
        f"rank correlation of saliency and loss {agreement:.2f} "
        "(1: the more salient, the more it costs)",
        {"bins": len(table), "rank_correlation": agreement},
        (Table.of(f"each bin removed alone, {first}", table.drop(columns="pooled")),),
        (plan_command(request, request.criterion, request.calibrated_on, budget),),
        table,
    )


ACTION: Final = Action(
    BinsRequest,
    _run,
    _tell,
    "bins demo --criterion reap --calibrated-on demo-code --corpus demo-math --samples 4",
    "bins of {about} by {request.criterion}",
    "explore.loss",
)
