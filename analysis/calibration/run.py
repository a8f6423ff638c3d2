"""The calibration run, resumable: load the model, feed every sequence once, save the sums."""

import time
from collections.abc import Generator, Mapping
from contextlib import ExitStack
from dataclasses import replace

import torch
from transformers import PreTrainedModel

from analysis.calibration.distributed import Processes, join
from analysis.calibration.experts import collecting
from analysis.calibration.feed import checkpointed, feed, feed_backward
from analysis.calibration.heads import Feed, Heads
from analysis.calibration.loading import DTYPES, CalibrationSettings, load_model, offload_space
from analysis.calibration.manifest import finished_run, plan_run
from analysis.calibration.memory import check_fits, with_blocks
from analysis.calibration.partial import PartialRun, Work, note_model, resume_state, run_facts
from analysis.calibration.shared import run_shares
from analysis.calibration.streamed import stream
from analysis.calibration.sums import sums_of
from analysis.calibration.tables import group_facts, store_run
from analysis.corpora.sequences import TokenSequences
from analysis.errors import StatsError, not_finite
from analysis.model.layer_costs import layer_costs
from analysis.model.moe_model import MoEModel
from analysis.progress import LOADING, NOTHING, Parts, Progress
from analysis.stats.manifest import Run, RunManifest
from analysis.stats.store import StatsStore, read_run


def _accumulate(
    model: PreTrainedModel,
    sequences: TokenSequences,
    work: Work,
    batch_size: int,
    heads: Heads | None,
) -> Generator[Progress, None, None]:
    """Run the batches that are not done."""
    state, total = work.state, sequences.num_tokens
    run: Feed = feed_backward if "gradient" in work.sums.groups else feed
    if heads:
        run = heads.fed_after(run)
    note = f"resumed after {state.tokens} of {total} tokens" if state.done else ""
    yield Progress("calibrating", state.tokens, total, "tokens", note)
    try:
        for batch in sequences.batches(batch_size, start=state.done):
            started = time.monotonic()
            with torch.no_grad():
                run(model, batch)
            state.done += len(batch.mask)
            state.tokens += int(batch.mask.sum())
            state.seconds += time.monotonic() - started
            if work.is_due():
                work.save()
            yield Progress("calibrating", state.tokens, total, "tokens")
    except GeneratorExit:
        # Stopped between two batches, so the sums are complete. Any other exception may come in
        # the middle of one: then the last saved state stands.
        work.save()
        raise


def calibrate(
    model: MoEModel,
    sequences: TokenSequences,
    settings: CalibrationSettings,
    store: StatsStore,
    *,
    resume: bool = True,
) -> Generator[Progress, None, Run]:
    """Run the model once over `sequences` and store the statistics.

    A run in the cache is returned at once. An interrupted one resumes from its saved state, at
    most 30 seconds old, and gives the same numbers as an uninterrupted one with the same batch
    size. With `resume` off it starts from scratch.

    Under a launcher each process holds its share of the layers, see `shared`; only the first one
    writes, and only its result is a readable run.
    """
    manifest, processes = plan_run(model, sequences, settings), join()
    first = processes.share(manifest.digest)
    with processes.together():
        if first != manifest.digest:
            raise StatsError(
                "It would do another run than the first process; give all processes the same "
                "model, corpus and options."
            )
    cached = yield from _from_cache(processes, store, manifest)
    if cached:
        return cached
    with ExitStack() as locks:
        with processes.together():
            partial = PartialRun(store.target, manifest) if processes.is_first else None
            if partial:
                locks.enter_context(partial.locked())
        # Another program may have finished it meanwhile.
        cached = yield from _from_cache(processes, store, manifest)
        if cached:
            return cached
        if partial and not resume:
            partial.forget()
        sums = sums_of(model, settings.groups, len(sequences.rows))
        # Saved hidden states depend on the batch size.
        layers = f"layers of batches of {settings.batch_size}"
        way = layers if settings.placement.stream_layers else "batches"
        state, before = resume_state(processes, partial, way, sums.tensors().keys())
        if before:
            sums.load(before)
        work = Work(manifest, processes, partial, sums, state)
        manifest = yield from _calibrate(model, sequences, settings, work)
        with processes.together():
            run = store_run(store.target, manifest, sums) if partial else None
    files = processes.share(run and dict(run.manifest.files))
    return run or _remote_run(store, manifest, files)


def _remote_run(store: StatsStore, manifest: RunManifest, files: Mapping[str, str]) -> Run:
    """The run that the first process wrote, maybe on another machine, with its hashes."""
    return Run(store.target / manifest.run_id, replace(manifest, files=files))


def _from_cache(
    processes: Processes, store: StatsStore, manifest: RunManifest
) -> Generator[Progress, None, Run | None]:
    with processes.together():
        run = finished_run(store, manifest) if processes.is_first else None
        unreadable = store.target / manifest.run_id
        if processes.is_first and not run and unreadable.exists():
            read_run(unreadable)  # reports what is wrong before the work, not after it
    files = processes.share(run and dict(run.manifest.files))
    if files is None:
        return None
    total = sum(corpus.num_tokens for corpus in manifest.corpora)
    run = run or _remote_run(store, manifest, files)
    note = f"{run.manifest.run_id} is in the cache"
    yield Progress("cached", total, total, "tokens", note, whole=NOTHING)
    return run


def _parts(model: MoEModel, sequences: TokenSequences, work: Work) -> Parts:
    """Loading the model and running it; tokens in the saved sums are done."""
    costs, tokens = layer_costs(model), sequences.num_tokens
    depth = model.depth + 1 if "heads" in work.sums.groups else model.depth
    running = {"multiply": costs.running(tokens, *range(depth))}
    parts = {LOADING: {"read": costs.reading(*costs.num_bytes)}, "calibrating": running}
    return Parts(parts, {"calibrating": work.state.tokens / tokens})


def _run_whole(
    model: MoEModel, sequences: TokenSequences, settings: CalibrationSettings, work: Work
) -> Generator[Progress, None, None]:
    yield Progress(LOADING, 0, sequences.num_tokens, "tokens")
    with offload_space(settings.placement) as offload:
        check_fits(model, sequences, settings)
        loaded = load_model(model, settings, offload)
        has_heads = "heads" in work.sums.groups
        heads = Heads(model, settings, work.sums) if has_heads else None
        note_model(work.state, loaded, settings)
        with ExitStack() as stack:
            if settings.placement.checkpoint_activations:
                stack.enter_context(checkpointed(loaded, model.family))
            stack.enter_context(collecting(loaded, model, work.sums))
            yield from _accumulate(loaded, sequences, work, settings.batch_size, heads)


def _calibrate(
    model: MoEModel, sequences: TokenSequences, settings: CalibrationSettings, work: Work
) -> Generator[Progress, None, RunManifest]:
    if settings.placement.stream_layers:
        yield from stream(model, sequences, with_blocks(model, sequences, settings), work)
    else:
        parts, run = _parts(model, sequences, work), _run_whole
        if work.processes.world > 1:
            run = run_shares
        yield from parts.by_phase(run(model, sequences, settings, work))
    work.collect()
    with work.processes.together():
        bad = [name for name, sums in work.sums.tensors().items() if not sums.isfinite().all()]
        if work.partial and bad:
            work.partial.forget()
            name, _, layer = bad[0].rpartition(".")
            dtype = DTYPES[work.manifest.settings["dtype"]]
            raise not_finite(f"The sums {name} of layer {layer} hold", dtype)
    facts = None
    if work.partial:
        facts = run_facts(work, settings) | group_facts(work.manifest, work.sums)
    return replace(work.manifest, made=work.processes.share(facts))
