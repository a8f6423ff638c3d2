"""Repairs a plan: prepares a pass through the layers, and keeps what it made."""

import shutil
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch
from filelock import FileLock, Timeout

from analysis.calibration.distributed import Processes, join
from analysis.calibration.free import give_back_memory
from analysis.calibration.hidden import HiddenStates
from analysis.calibration.loading import CalibrationSettings, resolve_dtype
from analysis.calibration.manifest import corpus_ref
from analysis.calibration.skeleton import Skeleton
from analysis.corpora.encoding import check_token_ids
from analysis.corpora.sequences import TokenSequences
from analysis.errors import StatsError
from analysis.files.durable import PARTIAL, make_folder
from analysis.files.home import from_home
from analysis.model.moe_model import MoEModel
from analysis.progress import LOADING, NOTHING, Progress
from pruning.engine.repaired_weights import down_tensors
from pruning.engine.run import how_made
from pruning.plan.plan import PruningPlan, changes_nothing
from pruning.records.repair import RepairRecord, RepairStore
from pruning.repair.batches import placed_batches
from pruning.repair.estimate import RepairMemory, check_memory, repair_memory
from pruning.repair.expert_store import ExpertStore
from pruning.repair.fitting import Fitting
from pruning.repair.layers import RepairPass, States
from pruning.repair.method import method
from pruning.repair.work import Work


def check_repairable(model: MoEModel, plan: PruningPlan) -> None:
    """Refuse a model whose down projections cannot be refitted, and a plan with nothing to do."""
    if plan.repair is not None:
        raise StatsError("The plan is repaired already; give the plan that the repair was made of.")
    if changes_nothing(plan, model):
        raise StatsError("The plan removes nothing, so there is nothing to repair.")
    down_tensors(model)


@contextmanager
def _locked(store: RepairStore, record: RepairRecord) -> Iterator[Path]:
    """The folder of the files while they are made, for this process and those of its launcher."""
    folder = store.unfinished(record)
    make_folder(folder)
    lock = FileLock(folder.with_name(f".{folder.name}.lock"), timeout=0)
    try:
        with lock:
            try:
                yield folder
            finally:
                if folder.is_dir() and not any(folder.iterdir()):  # nothing to resume from
                    folder.rmdir()
                Path(lock.lock_file).unlink(missing_ok=True)
    except Timeout as error:
        raise StatsError(
            f"{record.record_id} is being made by another process; wait for it to finish."
        ) from error


def repair_plan(
    model: MoEModel,
    plan: PruningPlan,
    corpora: Sequence[TokenSequences],
    settings: CalibrationSettings,
    store: RepairStore,
) -> Generator[Progress, None, RepairRecord]:
    """Refit the kept experts of a plan, which is complete, on these sequences.

    A known repair is returned at once. An interrupted one resumes after its last layer, with the
    same result. Under a launcher, processes share the batches; the first one writes, to a folder
    that all of them see.
    """
    processes = join()
    with processes.together():
        check_repairable(model, plan)
        batches = placed_batches(corpora, settings.batch_size, processes)
        new = new_repair(model, plan, corpora, settings)
        known = store.find(new)
    if known.is_measured:
        note = f"{known.record_id} is in the cache"
        yield Progress("cached", 1, 1, "repairs", note, whole=NOTHING)
        return known
    with processes.together():
        memory = repair_memory(model, plan, corpora, settings, processes.world)
        check_memory(model, memory, settings)
    started = time.monotonic()
    give_back_memory()
    with ExitStack() as stack:
        with processes.together():
            if processes.is_first:
                stack.enter_context(_locked(store, new))
        files = store.unfinished(new)
        states = _states(new, settings, processes, files)
        shutil.rmtree(states, ignore_errors=True)  # of a killed repair
        # Also of one that fails or is stopped: none of them is read again.
        stack.callback(shutil.rmtree, states, ignore_errors=True)
        yield Progress(LOADING, 0, 1, "repairs")
        skeleton = Skeleton(model, settings)
        placed = _placed(states, memory)
        fitting = Fitting(model, plan, files, processes, placed.kept, memory.columns)
        work = Work(model, plan, batches, fitting.known_gain, memory.at_once)
        through = RepairPass(
            model, plan, batches, new, placed, skeleton, fitting, work, memory.at_once
        )
        layers = yield from through.run()
        with processes.together():
            made = how_made(settings, time.monotonic() - started)
            record = new.with_layers(layers, fitting.sha256, {**made, "processes": processes.world})
        with processes.together():  # all of them have read the files
            if processes.is_first:
                for state in files.glob("*.json"):
                    state.unlink()
                store.finish(record, files)
    return record


def new_repair(
    model: MoEModel,
    plan: PruningPlan,
    corpora: Sequence[TokenSequences],
    settings: CalibrationSettings,
) -> RepairRecord:
    """The record of a repair before it runs; loads no model."""
    for sequences in corpora:
        largest = max(int(row.max()) for row in sequences.rows)
        check_token_ids(sequences.corpus, largest, model)
    numbers = {
        "dtype": resolve_dtype(settings.dtype, model),
        "seed": settings.seed,
        "seq_len": settings.seq_len,
    }
    refs = [corpus_ref(corpus, settings.batch_size) for corpus in corpora]
    return RepairRecord.new(model, plan, refs, numbers, method())


def _placed(folder: Path, memory: RepairMemory) -> States:
    """Where a repair keeps what it goes through again."""
    on_disk = bool(memory.on_disk)
    original, repaired = (
        HiddenStates(folder / name, on_disk=on_disk) for name in ("original", "repaired")
    )
    if not memory.at_once:
        kept = ExpertStore()
    elif on_disk:
        kept = ExpertStore(folder / "fit")
    else:
        kept = ExpertStore(memory=torch.device("cpu"))
    return States(original, repaired, kept)


def _states(
    record: RepairRecord, settings: CalibrationSettings, processes: Processes, files: Path
) -> Path:
    """The folder of this process's hidden states, if they go to disk."""
    place = settings.placement.hidden_states_dir
    parent = from_home(place) if place else files.parent
    return parent / f"{record.record_id}-{processes.rank}{PARTIAL}"
