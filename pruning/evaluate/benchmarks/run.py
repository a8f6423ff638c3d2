"""Benchmarks of many candidates on one loaded model; what is known already is not run again."""

import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version

from transformers import PreTrainedModel

from analysis.calibration.loading import (
    CalibrationSettings,
    load_model,
    load_tokenizer,
    resolve_dtype,
)
from analysis.errors import StatsError
from analysis.model import MoEModel
from analysis.progress import Progress
from pruning.evaluate.benchmarks.harness import HarnessSettings, run_harness
from pruning.evaluate.benchmarks.harness_results import harness_scores
from pruning.evaluate.benchmarks.record import (
    BenchmarkRecord,
    BenchmarkStore,
    Candidate,
    new_record,
    settings_of,
)
from pruning.evaluate.candidate import candidate_of
from pruning.evaluate.run import how_made
from pruning.plan import PruningPlan


@dataclass(frozen=True, eq=False)
class Benchmarks:
    """What is benchmarked, and how."""

    model: MoEModel  # that runs
    # Each with the plan that is masked in the model; None: the model as it is.
    candidates: Sequence[tuple[Candidate, PruningPlan | None]]
    asked: HarnessSettings  # the tasks, and how they are asked
    settings: CalibrationSettings  # dtype, device, remote code
    store: BenchmarkStore  # where results are found and kept
    # For tasks known before loading: another version is run again.
    versions: Mapping[str, str] = field(default_factory=dict)
    # Task -> what is known to have read its test set; records say it.
    read_before: Mapping[str, str] = field(default_factory=dict)

    def missing(self, record: BenchmarkRecord) -> tuple[str, ...]:
        """Tasks that are asked for and not known."""
        return tuple(
            task for task in self.asked.tasks if not record.of_task(task, self.versions.get(task))
        )


def run_benchmarks(work: Benchmarks) -> Generator[Progress, None, list[BenchmarkRecord]]:
    """Benchmark every candidate; each result is saved as soon as it is there.

    Returns:
        Records in the order of the candidates.
    """
    asked = work.asked
    dtype = resolve_dtype(work.settings.dtype, work.model)
    settings = settings_of(
        limit=asked.limit,
        num_fewshot=asked.num_fewshot,
        dtype=dtype,
        chat_template=asked.chat_template,
    )
    new = [new_record(candidate, "lm-eval", settings) for candidate, _ in work.candidates]
    records = list(map(work.store.find, new))
    total = len(records)
    if not any(map(work.missing, records)):
        yield Progress("cached", total, total, "candidates", "all benchmarks are known already")
        return records
    yield Progress("loading the model", 0, total, "candidates")
    loaded = load_model(work.model, work.settings)
    for number, (candidate, plan) in enumerate(work.candidates):
        note = f"{candidate.label}: {number + 1} of {total}" if total > 1 else ""
        yield Progress("benchmarks", number, total, "candidates", note)
        if missing := work.missing(records[number]):
            records[number] = yield from _with_tasks(records[number], work, loaded, plan, missing)
            work.store.save(records[number])
    return records


def _with_tasks(
    record: BenchmarkRecord,
    work: Benchmarks,
    loaded: PreTrainedModel,
    plan: PruningPlan | None,
    tasks: tuple[str, ...],
) -> Generator[Progress, None, BenchmarkRecord]:
    """The record with the scores of these tasks, which the candidate runs."""
    started = time.monotonic()
    trust = work.settings.trust_remote_code
    tokenizer = load_tokenizer(work.model, trust_remote_code=trust)
    with candidate_of(loaded, work.model.family, plan):
        results = yield from run_harness(loaded, tokenizer, replace(work.asked, tasks=tasks))
    scores = harness_scores(results)
    if not scores:
        raise StatsError(f"The benchmarks {', '.join(tasks)} gave no number.")
    made = how_made(work.settings, time.monotonic() - started)
    made |= {"batch_size": work.asked.batch_size}
    if work.read_before:
        made |= {"read_before": dict(work.read_before)}
    return record.with_scores(scores, version("lm_eval"), made)
