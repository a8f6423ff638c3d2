"""Evaluations of many plans on several corpora with one loaded model; known results are kept."""

import platform
import time
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import compress
from typing import Any, Protocol, TypeVar

import torch
import transformers
from torch import Tensor
from transformers import PreTrainedModel

from analysis.calibration.distributed import Processes, join
from analysis.calibration.feed import check_config
from analysis.calibration.loading import (
    CalibrationSettings,
    load_model,
    offload_space,
    resolve_device,
    resolve_dtype,
)
from analysis.calibration.memory import check_fits
from analysis.model import MoEModel
from analysis.progress import Progress
from pruning.active import Routing
from pruning.evaluate.candidate import MaskedCandidates, MeasureSettings, measure_candidate
from pruning.evaluate.drawing import DrawnSamples
from pruning.evaluate.full_side import FullSide, OutputHead, full_side
from pruning.evaluate.record import EvaluationRecord
from pruning.evaluate.result import DECODED, Evaluation, summarise
from pruning.evaluate.samples import SampleBatch, Samples, make_samples
from pruning.evaluate.speculative import Decoding, run_acceptance
from pruning.evaluate.store import RecordStore
from pruning.evaluate.streamed import EvaluationPlans, partial_folder, run_plans
from pruning.plan import PruningPlan, fit_plan

Result = TypeVar("Result")


@dataclass(frozen=True, eq=False)
class Evaluations:
    """The evaluations that are asked for."""

    model: MoEModel  # the original model
    plans: Sequence[PruningPlan]  # candidates
    draws: Sequence[DrawnSamples]  # one entry per corpus
    measures: tuple[str, ...]  # names, of MEASURES
    settings: CalibrationSettings  # its seed is that of the bootstrap and of draws
    store: RecordStore[Any]  # of `EvaluationRecord` or a kind of it
    routing: Routing | None = None  # how often experts are chosen, see `plan_facts`

    def missing(self, record: EvaluationRecord) -> tuple[str, ...]:
        """Measures that the record lacks."""
        return tuple(name for name in self.measures if name not in record.metrics)


class Candidates(Protocol):
    """The original model and plans of it, by their final hidden states."""

    @property
    def model(self) -> PreTrainedModel:
        """The model, whole or with weights in its head only."""

    @property
    def head(self) -> OutputHead:
        """The head of the model."""

    def hidden(self, samples: Samples, plan: PruningPlan | None, batch: SampleBatch) -> Tensor:
        """`final_hidden` on a batch of the samples; None is the original model."""


def known_records(work: Evaluations) -> list[list[EvaluationRecord]]:
    """The records by corpus and plan, with the results that are known so far."""
    fitted = [fit_plan(plan, work.model) for plan in work.plans]
    dtype = resolve_dtype(work.settings.dtype, work.model)
    settings = {"dtype": dtype, "seed": work.settings.seed}
    new = partial(work.store.kind.new, work.model, settings=settings, routing=work.routing)
    return [[work.store.find(new(plan, each.corpus)) for plan in fitted] for each in work.draws]


def how_made(settings: CalibrationSettings, seconds: float | None = None) -> dict[str, Any]:
    """How a record was made: device, batch size, seconds, system and versions."""
    return {
        "device": settings.placement.device_map or str(resolve_device(settings.device)),
        "batch_size": settings.batch_size,
        **({} if seconds is None else {"seconds": round(seconds, 2)}),
        "system": f"{platform.system()} {platform.machine()}",
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__.partition("+")[0],
            "transformers": transformers.__version__,
        },
    }


def run_evaluations(work: Evaluations) -> Generator[Progress, None, list[EvaluationRecord]]:
    """Evaluate every plan on every corpus; the records, by corpus and then by plan.

    Each result is saved at once, so an interrupted run resumes after the last one. The model is
    loaded only if something is missing. Under a launcher, processes share the samples; the first
    one saves, and all return the same.
    """
    processes = join()
    with processes.together():
        records = known_records(work)
    total = sum(map(len, records))
    if not any(work.missing(record) for row in records for record in row):
        yield Progress("cached", total, total, "evaluations", "all evaluations are known already")
        return [record for row in records for record in row]
    yield Progress("loading the model", 0, total, "evaluations")
    batch_size = work.settings.batch_size
    samples = [make_samples(each.sequences, batch_size, processes) for each in work.draws]
    if not work.settings.placement.stream_layers:
        with offload_space(work.settings.placement) as offload:
            longest = max(work.draws, key=lambda each: each.sequences.longest)
            with processes.together():
                check_fits(work.model, longest.sequences, work.settings)
                loaded = load_model(work.model, work.settings, offload)
            candidates = MaskedCandidates(loaded, work.model.family)
            return (yield from _measure(work, records, samples, candidates, processes))

    facts = [work.model.identity, resolve_dtype(work.settings.dtype, work.model), batch_size]
    facts += [each.sequences.digest for each in work.draws]
    with partial_folder(work.store.folder, facts, processes) as at:
        missing = [any(map(work.missing, rows)) for rows in zip(*records, strict=True)]
        plans = EvaluationPlans(work.plans, tuple(compress(work.plans, missing)))
        with processes.together():
            ends = yield from run_plans(work.model, plans, samples, work.settings, at)
        finished = yield from _measure(work, records, samples, ends, processes)
        ends.clear()
        return finished


def _measure(
    work: Evaluations,
    records: Sequence[Sequence[EvaluationRecord]],
    samples: Sequence[Samples],
    candidates: Candidates,
    processes: Processes,
) -> Generator[Progress, None, list[EvaluationRecord]]:
    """The completed records, each saved at once; by corpus, then by plan."""
    total = sum(map(len, records))
    finished: list[EvaluationRecord] = []
    for corpus, row in enumerate(records):
        if not any(map(work.missing, row)):
            finished += row
            continue
        if samples[corpus].sequences.positions is not None:
            check_config(candidates.model.config)
        with processes.together():
            side = yield from full_side(
                candidates.head,
                samples[corpus],
                partial(candidates.hidden, samples[corpus], None),
                work.settings.placement.hidden_states_dir,
            )
        with closing(side):
            for plan, record in zip(work.plans, row, strict=True):
                if missing := work.missing(record):
                    started = time.monotonic()
                    task = _evaluate(work, candidates, plan, side, missing)
                    result = yield from _overall(task, len(finished), total)
                    run_facts = how_made(work.settings, time.monotonic() - started)
                    record = record.with_results(result, run_facts)
                    with processes.together():
                        if processes.is_first:
                            work.store.save(record)
                finished.append(record)
    return finished


def _evaluate(
    work: Evaluations,
    candidates: Candidates,
    plan: PruningPlan,
    side: FullSide,
    missing: Sequence[str],
) -> Generator[Progress, None, Evaluation]:
    family, seed = work.model.family, work.settings.seed
    # Needed even if only decoding is asked for, since the record counts the positions.
    at_positions = tuple(name for name in missing if name not in DECODED) or ("esap",)
    settings = MeasureSettings(at_positions, seed)
    hidden_of = partial(candidates.hidden, side.samples, plan)
    result = yield from measure_candidate(side, settings, hidden_of)
    model = candidates.model
    for name in set(missing) & set(DECODED):
        sums = yield from run_acceptance(model, family, plan, side.samples, Decoding(seed=seed))
        result = replace(result, metrics={**result.metrics, name: summarise(sums, seed=seed)})
    return result


def _overall(
    task: Generator[Progress, None, Result], done: int, total: int
) -> Generator[Progress, None, Result]:
    """The steps of one task of `total`, after `done` of them, as overall progress."""
    while True:
        try:
            step = next(task)
        except StopIteration as stop:
            result: Result = stop.value
            return result
        size = step.total or 1
        yield Progress(step.phase, done * size + step.done, total * size, step.unit)
