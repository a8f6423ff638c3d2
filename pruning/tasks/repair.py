"""Tasks of repair: a plan refitted on text, and plans with their repairs as further candidates."""

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from analysis.errors import CorpusError
from analysis.model.moe_model import MoEModel
from analysis.model.opening import load_model_index
from analysis.progress import Costs, Parts, Progress
from analysis.ranking.choose import path_hint, run_by_corpus
from analysis.stats.store import stats_store
from pruning.plan.plan import PruningPlan, fit_plan, takes_repair
from pruning.plan.plan_file import plan_from_dict
from pruning.records.repair import RepairRecord, RepairStore
from pruning.records.repair_files import with_repair_files
from pruning.repair.costs import repair_costs
from pruning.requests.model import ModelRequest
from pruning.requests.repair import RepairRequest
from pruning.tasks import Steps
from pruning.tasks.calibration import check_corpora, prepare_calibration
from pruning.tasks.loading import check_records_folder, quiet_transformers, together

if TYPE_CHECKING:
    from analysis.calibration.loading import CalibrationSettings
    from analysis.corpora.sequences import TokenSequences
    from pruning.repair.estimate import RepairEstimate

# What the repair of a candidate shares with the request that compares it.
_SHARED = (
    "model",
    "revision",
    "dtype",
    "device",
    "batch_size",
    "experts_at_once",
    "trust_remote_code",
    "stats_dir",
    "skip_bad_rows",
)


def repair_run(request: RepairRequest) -> Steps[RepairRecord]:
    """Refit what a plan keeps, unless that is known; the record, whose files lie beside it."""
    with together():
        ready = yield from _prepare(request)
    from pruning.repair.run import repair_plan

    quiet_transformers()
    store = RepairStore(stats_store(request.stats_dir).directories)
    return (yield from repair_plan(*ready, store))


def estimate_repair_run(request: RepairRequest) -> "Steps[RepairEstimate]":
    """What `repair_run` would cost."""
    ready = yield from _prepare(request)
    from pruning.repair.estimate import estimate_repair

    return estimate_repair(*ready)


def _prepare(
    request: RepairRequest,
) -> "Steps[tuple[MoEModel, PruningPlan, list[TokenSequences], CalibrationSettings]]":
    """The model, the complete plan, the sequences of every corpus, and how the model runs."""
    model = load_model_index(request.model, revision=request.revision)
    # Fewer bits are only simulated: what exports hold is repaired, and then given them.
    plan = fit_plan(plan_from_dict(request.plan), model).in_own_bits
    store = stats_store(request.stats_dir)
    check_records_folder(request.stats_dir, RepairStore(store.directories), model.identity)
    runs = store.of_model(model.identity, "routed")
    calibrated = {name: path_hint(run) for name, run in run_by_corpus(runs).items()}
    readings = request.readings(plan, calibrated)
    least = sum(reading.sampling().seq_len for reading in readings)
    try:
        yield from check_corpora(readings)  # before libraries are imported
    except CorpusError as error:
        if len(readings) == 1 or request.tokens >= least:
            raise
        shared = f"{len(readings)} corpora share {request.tokens} tokens; use at least {least}."
        raise CorpusError(f"{error} {shared}") from error
    from pruning.repair.run import check_repairable

    check_repairable(model, plan)
    prepared = []
    for reading in readings:
        prepared.append((yield from prepare_calibration(reading)))
    settings = prepared[0][2]
    longest = max(calibration.seq_len for _, _, calibration in prepared)
    sequences = [tokens for _, tokens, _ in prepared]
    return model, plan, sequences, replace(settings, seq_len=longest)


def shared_options(request: ModelRequest) -> dict[str, Any]:
    """The options of a request that the repair of a candidate shares.

    Corpora that ranked, as they were named, are what it is fitted on.
    """
    shared = request.model_dump(include=set(_SHARED), exclude_none=True)
    return shared | {"corpora": getattr(request, "calibrated_on", ())}


def repair_parts(model: MoEModel, plans: Iterable[PruningPlan]) -> dict[str, Costs]:
    """What the repairs of plans are expected to cost, by number of the plan."""
    return {
        str(number): repair_costs(model, plan)
        for number, plan in enumerate(plans)
        if takes_repair(plan, model)
    }


def with_repairs(
    request: ModelRequest,
    model: MoEModel,
    plans: Iterable[PruningPlan],
    parts: Parts | None = None,
) -> Steps[list[PruningPlan]]:
    """The plans, each followed by itself repaired on the corpora that ranked it.

    One that is repaired already, or that removes nothing, stays alone. `parts` are those of the
    task, with those of `repair_parts`; without, the repairs are the whole.
    """
    plans = list(plans)
    whole = parts or Parts(repair_parts(model, plans))
    shared = shared_options(request)
    directories = stats_store(shared.get("stats_dir")).directories
    candidates = []
    waiting = [str(number) for number, plan in enumerate(plans) if takes_repair(plan, model)]
    for number, plan in enumerate(plans):
        candidates.append(plan)
        if takes_repair(plan, model):
            waiting.remove(str(number))
            repairing = repair_run(RepairRequest(plan=plan.to_dict(), **shared))
            record = yield from whole.run(str(number), repairing, alike=waiting)
            repaired = replace(plan, repair=record.reference)
            candidates.append(with_repair_files(repaired, directories))
    if parts is None:  # what follows states its own work, or none
        yield Progress("repaired", len(plans), len(plans), "plans", whole=whole.whole)
    return candidates
