"""Evaluations of many plans on several corpora with one loaded model; known results are kept."""

import platform
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, compress
from typing import Any, ClassVar, Protocol, TypeVar

import torch
import transformers
from torch import Tensor
from transformers import PreTrainedModel

from analysis.calibration.distributed import Processes, join
from analysis.calibration.feed import check_config
from analysis.calibration.line import Line
from analysis.calibration.loading import (
    CalibrationSettings,
    load_model,
    offload_space,
    resolve_device,
    resolve_dtype,
)
from analysis.calibration.memory import check_fits
from analysis.errors import StatsError
from analysis.model.moe_model import MoEModel
from analysis.progress import NOTHING, Progress, changed
from pruning.engine.answering import Examination, run_answers_to
from pruning.engine.candidate import MaskedCandidates, MeasureSettings, measure_candidate
from pruning.engine.evaluation_parts import EvaluationParts, Missing
from pruning.engine.full_side import FullSide, OutputHead, full_side
from pruning.engine.plan_sums import sums_of_plan
from pruning.engine.shared import RunOver, shared_candidates
from pruning.engine.speculative import Decoding, run_acceptance
from pruning.engine.streamed import EvaluationPlans, clear_partial, partial_folder, run_plans
from pruning.measurements.block import Block
from pruning.measurements.records import MeasuredStore
from pruning.measurements.table import PlanSums, merged
from pruning.measures.drawn_samples import DrawnSamples
from pruning.measures.questions import Questions
from pruning.measures.result import ACCEPTANCE, DECODED, RIGHT, Evaluation
from pruning.measures.right_answers import MarkedAnswers, RightAnswers
from pruning.measures.samples import SampleBatch, Samples, make_samples
from pruning.plan.expert_sizes import Routing
from pruning.plan.plan import PruningPlan, fit_plan, keep_all
from pruning.records.evaluation import EvaluationRecord

Result = TypeVar("Result")
RecordRows = Sequence[Sequence[EvaluationRecord]]  # by corpus and plan


@dataclass(frozen=True, eq=False)
class Evaluations:
    """The evaluations that are asked for."""

    model: MoEModel  # the original model
    plans: Sequence[PruningPlan]  # candidates
    draws: Sequence[DrawnSamples]  # one entry per corpus
    measures: tuple[str, ...]  # names, of MEASURES
    settings: CalibrationSettings  # its seed is that of the bootstrap and of draws
    store: MeasuredStore[Any]  # of `EvaluationRecord` or a kind of it
    routing: Routing | None = None  # how often experts are chosen, see `plan_facts`

    def missing(self, record: EvaluationRecord, draw: DrawnSamples) -> tuple[str, ...]:
        """Measures of which there are no numbers; answers to other questions are none."""
        asked = tuple(name for name in self.measures if name != RIGHT)
        lacking = record.lacking_of(asked)
        return (*lacking, *([RIGHT] * _lacks_answers(record, draw.questions)))

    def rows_missing(self, records: RecordRows) -> list[list[tuple[str, ...]]]:
        """`missing` of each record, by corpus and plan."""
        rows = zip(records, self.draws, strict=True)
        return [[self.missing(record, draw) for record in row] for row, draw in rows]


def _lacks_answers(record: EvaluationRecord, questions: Questions | None) -> bool:
    known = record.right_answers
    return questions is not None and (known is None or known.digest != questions.facts["digest"])


class Candidates(Protocol):
    """The original model and plans of it, by their final hidden states."""

    has_run: ClassVar[bool]  # whether these are there before they are asked for

    @property
    def model(self) -> PreTrainedModel:
        """The model, whole or with weights in its head only."""

    @property
    def head(self) -> OutputHead:
        """The head of the model."""

    def hidden(self, samples: Samples, plan: PruningPlan | None, batch: SampleBatch) -> Tensor:
        """`final_hidden` on a batch of the samples; None is the original model."""


def known_records(work: Evaluations, processes: Processes) -> RecordRows:
    """The records by corpus and plan, with the results that are known so far.

    All processes get those that the first one finds: a store may change between two readings, or be
    another on another machine, and processes that lack different results wait for each other.

    Raises:
        StatsError: a process has other evaluations to make than the first.
    """
    with processes.together():
        rows = _new_records(work)
        if processes.is_first:
            rows = [[work.store.find(record) for record in row] for row in rows]
    if processes.world == 1:
        return rows
    known = [[_as_lines(record) for record in row] for row in rows]
    digests = [[record.digest for record in row] for row in rows]
    first, lines = processes.share([digests, known])
    with processes.together():
        if digests != first:
            raise StatsError(
                "It would evaluate something else than the first process; give all processes the "
                "same model, plans, corpora and options."
            )
        return [list(map(_from_lines, *pair)) for pair in zip(rows, lines, strict=True)]


def _new_records(work: Evaluations) -> list[list[EvaluationRecord]]:
    fitted = [fit_plan(plan, work.model) for plan in work.plans]
    dtype = resolve_dtype(work.settings.dtype, work.model)
    settings = {"dtype": dtype, "seed": work.settings.seed}
    new = partial(work.store.kind.new, work.model, settings=settings, routing=work.routing)
    return [[new(plan, draw.corpus) for plan in fitted] for draw in work.draws]


def _as_lines(record: EvaluationRecord) -> list[str]:
    """A record and its numbers, to share with other processes."""
    model, where = record.model.identity, record.where
    blocks = chain.from_iterable(
        sums.blocks(model, plan, where, sums.made) for plan, sums in record.numbers.items()
    )
    return [
        record.to_line() if record.is_measured else "",
        *(block.to_line().decode() for block in blocks),
    ]


def _from_lines(record: EvaluationRecord, lines: Sequence[str]) -> EvaluationRecord:
    line, *rest = lines
    known = record.from_json(line, record.record_id) if line else record
    blocks = [Block.from_line(text.encode()) for text in rest]
    plans = {
        block.plan: [other for other in blocks if other.plan == block.plan] for block in blocks
    }
    sums = {plan: merged(group, record.where) for plan, group in plans.items()}
    return known.with_numbers({plan: sum_ for plan, sum_ in sums.items() if sum_})


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
    loaded only if something is missing. Under a launcher, each process holds some of the layers,
    see `shared`; where texts are to be written, or layers streamed, they share the samples instead.
    The first one saves, and all return the same.
    """
    processes = join()
    records = known_records(work, processes)
    if processes.is_first:
        yield from work.store.table.notes(work.model.identity)
    total = sum(map(len, records))
    missing = work.rows_missing(records)
    if not any(lacks for row in missing for lacks in row):
        clear_partial(work.store.folder, _facts(work), processes)
        note = "all evaluations are known already"
        yield Progress("cached", total, total, "evaluations", note, whole=NOTHING)
        return [_asked(work, record, processes) for row in records for record in row]
    batch_size, streams = work.settings.batch_size, work.settings.placement.stream_layers
    shares_layers = processes.world > 1 and not streams and not _writes_texts(missing)
    sharing = Processes() if shares_layers else processes
    samples = [make_samples(draw.sequences, batch_size, sharing) for draw in work.draws]
    rows = [
        [Missing(lacks, _reads_text(record, lacks)) for record, lacks in zip(*pair, strict=True)]
        for pair in zip(records, missing, strict=True)
    ]
    parts = EvaluationParts.of(work.model, work.draws, samples, rows, stream_layers=streams)
    yield from parts.loading(total)
    if shares_layers:
        passes = _passes(work, samples, missing)
        return (yield from _run_shared(work, samples, records, parts, passes))
    if not streams:
        with offload_space(work.settings.placement) as offload:
            longest = max(work.draws, key=lambda draw: draw.sequences.longest)
            with processes.together():
                check_fits(work.model, longest.sequences, work.settings)
                loaded = load_model(work.model, work.settings, offload)
            parts.loaded()
            corpora = _Corpora(
                work, samples, MaskedCandidates(loaded, work.model.family), processes
            )
            return (yield from _measure(corpora, records, parts))

    with partial_folder(work.store.folder, _facts(work), processes) as at:
        wanted = [any(rows) for rows in zip(*missing, strict=True)]
        plans = EvaluationPlans(work.plans, tuple(compress(work.plans, wanted)))
        with processes.together():
            running = run_plans(work.model, plans, samples, work.settings, at)
            ends = yield from parts.layers(running)
        corpora = _Corpora(work, samples, ends, processes)
        finished = yield from _measure(corpora, records, parts)
        ends.clear()
        return finished


def _facts(work: Evaluations) -> list[object]:
    """What an unfinished pass through the layers is known by."""
    dtype = resolve_dtype(work.settings.dtype, work.model)
    digests = [draw.sequences.digest for draw in work.draws]
    return [work.model.identity, dtype, work.settings.batch_size, *digests]


def _writes_texts(missing: Sequence[Sequence[Sequence[str]]]) -> bool:
    """Whether a model writes texts, for which it runs whole, a token at a time."""
    return any({RIGHT, *DECODED} & set(lacks) for row in missing for lacks in row)


def _passes(
    work: Evaluations, samples: Sequence[Samples], missing: Sequence[Sequence[Sequence[str]]]
) -> list[RunOver]:
    """The original model and each plan of which something is missing, on each corpus."""
    passes: list[RunOver] = []
    for of, row in zip(samples, missing, strict=True):
        if plans := list(compress(work.plans, row)):
            passes += [(of, None), *((of, plan) for plan in plans)]
    return passes


def _run_shared(
    work: Evaluations,
    samples: Sequence[Samples],
    records: RecordRows,
    parts: EvaluationParts,
    passes: Sequence[RunOver],
) -> Generator[Progress, None, list[EvaluationRecord]]:
    """Each process runs its layers; the last in the line measures, and tells the others."""
    line, finished = Line(join()), list(chain.from_iterable(records))
    candidates = shared_candidates(work.model, work.settings, line, passes)
    parts.loaded()
    with line.open():
        if line.is_last:
            corpora = _Corpora(work, samples, candidates, Processes())
            finished = yield from _measure(corpora, records, parts)
        else:
            yield from candidates.follow()
    known = line.processes.share([_as_lines(record) for record in finished])
    return finished if line.is_last else list(map(_from_lines, finished, known))


@dataclass(frozen=True, eq=False)
class _Corpora:
    """What plans are measured with."""

    work: Evaluations
    samples: Sequence[Samples]  # by corpus
    candidates: Candidates
    processes: Processes


def _measure(
    corpora: _Corpora, records: RecordRows, parts: EvaluationParts
) -> Generator[Progress, None, list[EvaluationRecord]]:
    """The completed records, each saved at once; by corpus, then by plan."""
    work, candidates, processes = corpora.work, corpora.candidates, corpora.processes
    total = sum(map(len, records))
    finished: list[EvaluationRecord] = []
    for corpus, missing in enumerate(work.rows_missing(records)):
        row = records[corpus]
        if not any(missing):
            finished += [_asked(work, record, processes) for record in row]
            continue
        reads = any(map(_reads_text, row, missing))
        answers = _answers(work, candidates, work.draws[corpus].questions, row, processes)
        with ExitStack() as stack:
            side = None
            if reads:
                side = yield from parts.original(corpus, _full_side(corpora, corpus))
                stack.enter_context(closing(side))
            measured = _Corpus(work, candidates, side, answers, processes)
            for number, (plan, record) in enumerate(zip(work.plans, row, strict=True)):
                if lacks := missing[number]:
                    task = parts.plan(corpus, number, measured.completed(plan, record, lacks))
                    record = yield from _overall(task, len(finished), total)
                    _save(work, record, processes)
                finished.append(_asked(work, record, processes))
    return finished


def _save(work: Evaluations, record: EvaluationRecord, processes: Processes) -> None:
    with processes.together():
        if processes.is_first:
            work.store.save(record)


def _asked(work: Evaluations, record: EvaluationRecord, processes: Processes) -> EvaluationRecord:
    """The record with all that was asked for, whose numbers are known; saved if it had less."""
    asked = record.with_measures(work.measures)
    if asked.measures != record.measures:
        _save(work, asked, processes)
    return asked


def _full_side(corpora: _Corpora, corpus: int) -> Generator[Progress, None, FullSide]:
    samples, candidates = corpora.samples[corpus], corpora.candidates
    if samples.sequences.positions is not None:
        check_config(candidates.model.config)
    hidden_of = partial(candidates.hidden, samples, None)
    folder = corpora.work.settings.placement.hidden_states_dir
    with corpora.processes.together():
        return (yield from full_side(candidates.head, samples, hidden_of, folder))


def _reads_text(record: EvaluationRecord, missing: Sequence[str]) -> bool:
    """Whether the text is read for what is missing; a new record counts its positions too."""
    return bool(missing) and (missing != (RIGHT,) or not record.num_samples)


@dataclass
class _Answers:
    """Answers to the questions of one corpus; the original model writes its own once."""

    exam: Examination
    original: str  # digest of the plan that keeps all
    full: MarkedAnswers | None  # of the original model, if they are known

    def of(self, plan: PruningPlan) -> Generator[Progress, None, RightAnswers]:
        """The marks of a plan, beside those of the original model."""
        if self.full is None:
            self.full = yield from run_answers_to(self.exam, None)
        pruned = self.full
        if plan.digest != self.original:
            pruned = yield from run_answers_to(self.exam, plan)
        return RightAnswers.of(self.exam.questions, pruned, self.full)


def _answers(
    work: Evaluations,
    candidates: Candidates,
    questions: Questions | None,
    row: Sequence[EvaluationRecord],
    processes: Processes,
) -> _Answers | None:
    if questions is None:
        return None
    size = work.settings.batch_size
    exam = Examination(candidates.model, work.model.family, questions, size, processes)
    with processes.together():
        full = _known_full(work, questions, row) if processes.is_first else None
    full = processes.share(full)
    known = MarkedAnswers(tuple(full[0]), full[1]) if full else None
    return _Answers(exam, keep_all(work.model).digest, known)


def _known_full(
    work: Evaluations, questions: Questions, row: Sequence[EvaluationRecord]
) -> MarkedAnswers | None:
    """The original model's answers to these questions, in a record of any plan."""
    dtype = row[0].settings["dtype"]
    for record in chain(row, work.store.records(work.model.identity)):
        answers: RightAnswers | None = record.right_answers
        if answers and not _lacks_answers(record, questions) and record.settings["dtype"] == dtype:
            return answers.full
    return None


@dataclass(frozen=True, eq=False)
class _Corpus:
    """What the plans are measured with on one corpus."""

    work: Evaluations
    candidates: Candidates
    side: FullSide | None  # None if no record lacks a measure of the text
    answers: _Answers | None  # None if nothing is asked
    processes: Processes

    def completed(
        self, plan: PruningPlan, record: EvaluationRecord, missing: Sequence[str]
    ) -> Generator[Progress, None, EvaluationRecord]:
        """The record with what is missing."""
        started, numbers, answers = time.monotonic(), None, None
        if self.side and _reads_text(record, missing):
            result = yield from _evaluate(self.work, self.candidates, plan, self.side, missing)
            numbers = sums_of_plan(self.work.model, plan, result, self.side.samples)
        if self.answers and RIGHT in missing:
            answers = yield from self.answers.of(plan)
        run_facts = how_made(self.work.settings, time.monotonic() - started)
        if numbers:
            record = record.with_results(numbers, self.work.measures, run_facts)
            self._keep(record, numbers)
        return record.with_right_answers(answers, run_facts) if answers else record

    def _keep(self, record: EvaluationRecord, numbers: Mapping[str, PlanSums]) -> None:
        """Append what was measured to the table, with how it was made."""
        with self.processes.together():
            if self.processes.is_first:
                table, model = self.work.store.table, record.model.identity
                table.add_plans(model, numbers, record.where, record.made)


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
    result = yield from measure_candidate(side, settings, hidden_of, has_run=candidates.has_run)
    model = candidates.model
    if ACCEPTANCE in missing:
        sums = yield from run_acceptance(model, family, plan, side.samples, Decoding(seed=seed))
        result = replace(result, samples={**result.samples, ACCEPTANCE: sums})
    return result


def _overall(
    task: Generator[Progress, None, Result], done: int, total: int
) -> Generator[Progress, None, Result]:
    """The steps of one task of `total`, after `done` of them, as overall progress."""

    def change(step: Progress) -> Progress:
        size = step.total or 1
        return replace(step, done=done * size + step.done, total=total * size)

    return changed(task, change)
