"""lm-evaluation-harness on many candidates of one loaded model; known results are not rerun."""

import logging
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import version
from itertools import accumulate
from pathlib import Path
from queue import SimpleQueue
from threading import Event
from typing import Any, TypeVar

import datasets
import lm_eval.api.task
import lm_eval.evaluator
from datasets.exceptions import DatasetsError
from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]
from jinja2 import TemplateError
from lm_eval.evaluator import simple_evaluate
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from transformers import PreTrainedModel

from analysis.calibration.loading import (
    CalibrationSettings,
    load_model,
    load_tokenizer,
    resolve_dtype,
)
from analysis.corpora.encoding import TextReader
from analysis.corpora.tokens import Tokenizer
from analysis.errors import CorpusError, StatsError, first_line
from analysis.model.layer_costs import layer_costs
from analysis.model.moe_model import MoEModel
from analysis.progress import LOADING, Parts, Progress, changed, cost
from pruning.benchmarks.imports import harness_scores
from pruning.benchmarks.record import (
    BenchmarkCandidate,
    BenchmarkRecord,
    BenchmarkStore,
    benchmark_settings,
    new_benchmark,
)
from pruning.engine.candidate import candidate_of
from pruning.engine.run import how_made
from pruning.plan.plan import PruningPlan

Result = TypeVar("Result")
_LOADING = "loading the benchmarks"
_READING, _WRITING = "reading texts", "writing answers"
_CHARACTERS = 4  # of a token, about: requests are not tokenised twice
# Errors of loading a task, or its data from the hub.
_TASK_ERRORS = (
    DatasetsError,
    HTTPError,
    OSError,
    ImportError,
    ValueError,
    TypeError,
    KeyError,
    AttributeError,
    RuntimeError,
)


@dataclass(frozen=True, slots=True)
class HarnessSettings:
    """The tasks, and how to ask them."""

    tasks: tuple[str, ...]  # names of tasks or groups
    local: tuple[Path, ...] = ()  # folders of tasks that do not come with the harness
    limit: float | None = None  # questions per task, a share of them if below 1; None: all
    num_fewshot: int | None = None  # examples before each question; None: the task's own
    chat_template: bool = False
    template_args: Mapping[str, Any] = field(default_factory=dict, hash=False)  # of the template
    batch_size: int = 8  # requests per forward; changes numbers by rounding only


def _texts(request: Any) -> list[str]:
    """The texts of a request of the harness; other arguments say how to go on."""
    return [text for text in request.args if isinstance(text, str)]


class _StoppedError(Exception):
    """The caller closed the generator."""


class _Reporting(HFLM):  # type: ignore[misc]
    """The harness's own model class, with progress after each batch."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: Tokenizer,
        settings: HarnessSettings,
        report: Callable[[Progress], None],
        active: int = 1,
    ) -> None:
        """`active`: multiply-adds for a token."""
        size = settings.batch_size
        super().__init__(pretrained=model, tokenizer=tokenizer, batch_size=size)
        self._report, self._template_args = report, settings.template_args
        self._phase, self._done, self._total = "", 0, 0
        self._active, self._parts = active, Parts({})
        self._characters = [0]  # of the requests up to each one, as they run

    @property
    def has_begun(self) -> bool:
        """Whether a request has arrived, that is, all tasks are loaded."""
        return bool(self._phase)

    def _begin(self, phase: str, requests: Sequence[Any]) -> None:
        if self._phase:
            self._parts.finish(self._phase)
        self._phase, self._done, self._total = phase, 0, len(requests)
        characters = [sum(map(len, _texts(request))) for request in requests]
        if phase != _READING:  # long ones run first
            characters.sort(reverse=True)
        self._characters = list(accumulate(characters, initial=0))
        tokens = self._characters[-1] / _CHARACTERS
        costs: dict[str, float] = {"multiply": cost("multiply", tokens * self._active)}
        if phase == _WRITING:
            new = len(requests) * self.max_gen_toks
            costs["answer"] = cost("answer", new * self._active)
        self._parts.expect(phase, costs)
        self._advance(0)

    def _advance(self, rows: int) -> None:
        # Requests may share a row of a forward.
        self._done = min(self._total, self._done + rows)
        done, every = self._characters[self._done], self._characters[-1]
        self._parts.reach(self._phase, done / every if every else 1.0)
        whole = self._parts.whole
        self._report(Progress(self._phase, self._done, self._total, "requests", whole=whole))

    def loglikelihood(self, requests: Sequence[Any], disable_tqdm: bool = True) -> Any:
        self._begin("weighing choices", requests)
        return super().loglikelihood(requests, disable_tqdm=disable_tqdm)

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = True) -> Any:
        self._begin(_READING, requests)
        return super().loglikelihood_rolling(requests, disable_tqdm=disable_tqdm)

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = True) -> Any:
        self._begin(_WRITING, requests)
        return super().generate_until(requests, disable_tqdm=disable_tqdm)

    def apply_chat_template(
        self, chat_history: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True
    ) -> str:
        """As the harness does it: if the template refuses a system turn, without that turn."""
        instead = "leave out --chat-template"
        reader = TextReader(
            self.tokenizer, "A question", instead_of_chat=instead, arguments=self._template_args
        )
        options: dict[str, Any] = {
            "add_generation_prompt": add_generation_prompt,
            "continue_final_message": not add_generation_prompt,
        }
        try:
            return reader.format(chat_history, **options).text
        except CorpusError as error:
            own_code = isinstance(error.__cause__, NotImplementedError)
            if own_code and not self._template_args:  # mistral-common has no templates
                return str(super().apply_chat_template(chat_history, add_generation_prompt))
            if not isinstance(error.__cause__, TemplateError):
                raise
        others = [turn for turn in chat_history if turn["role"] != "system"]
        return reader.format(others, **options).text

    def _model_call(self, inps: Any, *args: Any, **kwargs: Any) -> Any:
        result = super()._model_call(inps, *args, **kwargs)
        self._advance(len(inps))
        return result

    def _model_generate(self, context: Any, *args: Any, **kwargs: Any) -> Any:
        result = super()._model_generate(context, *args, **kwargs)
        self._advance(len(context))
        return result


def run_harness(
    model: PreTrainedModel, tokenizer: Tokenizer, settings: HarnessSettings, active: int = 1
) -> Generator[Progress, None, Mapping[str, Any]]:
    """The harness's results, as in its files, without answers.

    The model may be original, masked or pruned; it stays on its device. Its work is stated once the
    requests are there, of each kind as its turn comes; `active` multiply-adds are for a token.
    """

    def work(report: Callable[[Progress], None]) -> Mapping[str, Any]:
        with _silence_harness():
            report(Progress(_LOADING, 0, 0))
            folders = [str(folder) for folder in settings.local]
            # The harness's own index takes seconds to read, so first try without it.
            manager = TaskManager(include_defaults=False, include_path=folders)
            if set(settings.tasks) - set(manager.all_tasks):
                manager = TaskManager(include_path=folders)
            wrapped = _Reporting(model, tokenizer, settings, report, active)
            try:
                results: dict[str, Any] = simple_evaluate(
                    model=wrapped,
                    tasks=list(settings.tasks),
                    task_manager=manager,
                    limit=settings.limit,
                    num_fewshot=settings.num_fewshot,
                    apply_chat_template=settings.chat_template,
                    log_samples=False,
                )
            except _TASK_ERRORS as error:
                if wrapped.has_begun:
                    raise
                reason = first_line(error).rstrip(".")
                raise CorpusError(
                    f"The benchmarks {', '.join(settings.tasks)} cannot be loaded: {reason}. Most "
                    "need the hub; tasks that run code which the model writes are refused."
                ) from error
            return results

    return (yield from _run_in_thread(work))


@contextmanager
def _silence_harness() -> Iterator[None]:
    """Inside the block, the harness shows no bars and advice, and does not run git and pip.

    Nor does the hub's client tell of every try: what failed at last is in the error.
    """
    loggers = [logging.getLogger(name) for name in ("lm_eval", "huggingface_hub")]
    levels, bar = [logger.level for logger in loggers], lm_eval.api.task.tqdm
    asks = lm_eval.evaluator.get_git_commit_hash, lm_eval.evaluator.add_env_info
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    datasets.disable_progress_bars()
    # There is no switch but the names in these modules.
    lm_eval.api.task.tqdm = partial(bar, disable=True)
    lm_eval.evaluator.get_git_commit_hash = str
    lm_eval.evaluator.add_env_info = dict
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        lm_eval.api.task.tqdm = bar
        lm_eval.evaluator.get_git_commit_hash, lm_eval.evaluator.add_env_info = asks


def _run_in_thread(
    work: Callable[[Callable[[Progress], None]], Result],
) -> Generator[Progress, None, Result]:
    """Run work that reports its progress, as a generator of it, in a thread.

    Closing the generator stops the work at its next report, and waits for that.
    """
    steps: SimpleQueue[Progress | None] = SimpleQueue()
    is_over = Event()

    def report(step: Progress) -> None:
        if is_over.is_set():
            raise _StoppedError
        steps.put(step)

    with ThreadPoolExecutor(1, "benchmark") as pool:
        future = pool.submit(work, report)
        future.add_done_callback(lambda _: steps.put(None))
        try:
            while (step := steps.get()) is not None:
                yield step
        finally:
            is_over.set()
    return future.result()


@dataclass(frozen=True, eq=False)
class Benchmarks:
    """The benchmarks that are asked for."""

    model: MoEModel  # that runs
    # With the plan to mask in the model; None: the model as it is.
    candidates: Sequence[tuple[BenchmarkCandidate, PruningPlan | None]]
    harness: HarnessSettings
    settings: CalibrationSettings  # dtype, device, remote code
    store: BenchmarkStore
    # Task -> current version, if known before loading; other versions run again.
    versions: Mapping[str, str] = field(default_factory=dict)
    # Task -> what has read its test set before, which records state.
    read_before: Mapping[str, str] = field(default_factory=dict)

    def missing(self, record: BenchmarkRecord) -> tuple[str, ...]:
        """Tasks that the record lacks."""
        return tuple(
            task for task in self.harness.tasks if not record.of_task(task, self.versions.get(task))
        )


def run_benchmarks(work: Benchmarks) -> Generator[Progress, None, list[BenchmarkRecord]]:
    """Benchmark every candidate and save each result at once; the records, by candidate."""
    harness = work.harness
    dtype = resolve_dtype(work.settings.dtype, work.model)
    settings = benchmark_settings(
        limit=harness.limit,
        num_fewshot=harness.num_fewshot,
        dtype=dtype,
        chat_template=harness.chat_template,
        template_args=harness.template_args,
    )
    records = [work.store.find(new_benchmark(n, settings)) for n, _ in work.candidates]
    total = len(records)
    if not any(map(work.missing, records)):
        yield Progress("cached", total, total, "candidates", "all benchmarks are known already")
        return records
    costs = layer_costs(work.model)
    parts = Parts({LOADING: {"read": costs.reading(*costs.num_bytes)}})
    yield Progress(LOADING, 0, total, "candidates", whole=parts.whole)
    loaded = load_model(work.model, work.settings)
    parts.finish(LOADING)
    for number, (candidate, plan) in enumerate(work.candidates):
        note = f"{candidate.candidate}: {number + 1} of {total}" if total > 1 else ""
        yield Progress("benchmarks", number, total, "candidates", note)
        if missing := work.missing(records[number]):
            scoring = _score_tasks(records[number], work, loaded, plan, missing)
            others = [n for n, record in enumerate(records) if n > number and work.missing(record)]
            steps = changed(scoring, partial(_expect_alike, parts, others))
            records[number] = yield from parts.run(str(number), steps)
            work.store.save(records[number])
    return records


def _expect_alike(parts: Parts, others: Sequence[int], step: Progress) -> Progress:
    """A step of a candidate; others, by number, are asked the same."""
    if step.whole:
        for number in others:
            parts.expect(str(number), step.whole.total)
    return step


def _score_tasks(
    record: BenchmarkRecord,
    work: Benchmarks,
    loaded: PreTrainedModel,
    plan: PruningPlan | None,
    tasks: tuple[str, ...],
) -> Generator[Progress, None, BenchmarkRecord]:
    """The record with the scores of these tasks."""
    started = time.monotonic()
    trust = work.settings.trust_remote_code
    tokenizer = load_tokenizer(work.model, trust_remote_code=trust, instead="")
    with candidate_of(loaded, work.model.family, plan):
        active = sum(layer_costs(work.model).active.values())
        harness = replace(work.harness, tasks=tasks)
        results = yield from run_harness(loaded, tokenizer, harness, active)
    scores = harness_scores(results)
    if not scores:
        raise StatsError(f"The benchmarks {', '.join(tasks)} gave no number.")
    run_facts = how_made(work.settings, time.monotonic() - started)
    run_facts |= {"batch_size": work.harness.batch_size}
    if work.read_before:
        run_facts |= {"read_before": dict(work.read_before)}
    return record.with_scores(scores, version("lm_eval"), run_facts)
