"""Kinds of jobs: request, task, and words in the job list.

Tasks are named, not imported: the dashboard reads this table and must not load torch.
"""

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, Final

from analysis.errors import sentence
from analysis.progress import Progress
from analysis.stats.manifest import Run
from pruning.actions.action import Action, given_to_a_job
from pruning.actions.listing import SENTENCES, action
from pruning.benchmarks.record import way_of
from pruning.requests.benchmark import BenchmarkRequest
from pruning.requests.calibration import CalibrateRequest
from pruning.requests.model import ExportRequest, WeightsRequest
from pruning.requests.recipe_steps import SearchRequest
from pruning.spec.base import Request, validated
from pruning.tasks.benchmark import benchmarks_as_json

Result = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class JobKind:
    """One kind of job."""

    request: type[Request]
    task: str  # a generator in `pruning.tasks`, as module.function: request -> progress
    title: str  # in the job list; `{about}` is the model, plan or folder, `{request}` the request
    sentence: Callable[[Result], str]  # result -> summary in the list, with the page to open
    result: Callable[[Any], dict[str, Any]] = dict  # value of the task -> a JSON object
    place: str = ""  # page part that lists these jobs besides Start; see `job_panel`
    # Request -> output to delete unless the job succeeds.
    partials: Callable[[Any], tuple[str, ...]] = lambda _: ()

    @classmethod
    def of(cls, row: Action[Any, Any]) -> "JobKind":
        """An action as a job, which keeps what came of it in a sentence."""
        return cls(row.request, "", row.title, partial(_told, row.place), place=row.place)

    def run(self, values: dict[str, Any]) -> Generator[Progress, None, dict[str, Any]]:
        """Run the task on a stored request."""
        if not self.task:
            request: Any = validated(self.request, values)
            outcome = yield from action(request.asked_by).steps(given_to_a_job(request))
            return outcome.plain
        module, name = self.task.split(".")
        task = getattr(import_module(f"pruning.tasks.{module}"), name)
        return self.result((yield from task(validated(self.request, values))))


# The part of a page that lists jobs -> how a person gets there.
_WHERE: Final = {
    "plan": "Plan",
    "export": "Export",
    "explore.loss": "Explore, Evidence",
    "explore.tokens": "Explore, Evidence",
    "evaluate.own": "Evaluate, This model",
    "evaluate.benchmarks": "Evaluate, Benchmarks",
    "evaluate.hidden": "Evaluate, Hidden states",
    "evaluate.ask": "Evaluate, Ask both models or Text lens",
}


def _told(place: str, result: Result) -> str:
    """What came of an action, and where it is to be seen; earlier versions kept no sentence."""
    words = "; ".join(str(result.get("sentence", "")).splitlines())
    where = f"See {_WHERE[place]}." if place else ""
    return " ".join(filter(None, (words and sentence(words[:1].upper() + words[1:]), where)))


def _statistics(result: Result) -> str:
    return f"Statistics {result['run_id']} are in the cache."


def _benchmarks(result: Result) -> str:
    benchmarks = result["benchmarks"]
    ways = {way_of(each["settings"]) for each in benchmarks}
    candidates = f"{len(benchmarks)} candidate{'s' if len(benchmarks) > 1 else ''}"
    return f"Scores of {candidates} are under Evaluate, Benchmarks: {'; '.join(ways)}."


def _export(result: Result) -> str:
    location = f"{'Found finished in' if result.get('skipped') else 'Written to'} {result['out']}"
    if not (verify := result.get("verify")):
        return location
    passed = sum(check["ok"] for check in verify["checks"])
    text = f"Verified at level {verify['level']}: {passed} of {len(verify['checks'])} checks"
    if (largest := verify.get("max_abs_diff")) is not None:
        text += f", largest logit difference to the masked original {largest:.2g}"
    return f"{text}. {location}"


def _run_result(run: Run) -> dict[str, Any]:
    return {"run_id": run.manifest.run_id, "path": str(run.path)}


KINDS: Final[Mapping[str, JobKind]] = {
    "calibrate": JobKind(
        CalibrateRequest,
        "calibration.calibrate_run",
        "{about} on {request.corpus}, {request.num_tokens:,} tokens",
        _statistics,
        _run_result,
    ),
    "weights": JobKind(
        WeightsRequest, "calibration.weights_run", "weights of {about}", _statistics, _run_result
    ),
    "export": JobKind(
        ExportRequest,
        "export.export_task",
        "{about}",
        _export,
        place="export",
        partials=lambda request: (f"{request.out}.partial",),
    ),
    "search": JobKind(
        SearchRequest,
        "search.search_task",
        "{about}",
        lambda result: (
            f"The best of {result['candidates']} candidates has {result['fitness']:.4f}."
        ),
    ),
    "benchmark": JobKind(
        BenchmarkRequest,
        "benchmark.benchmark_run",
        "benchmarks of {about}",
        _benchmarks,
        benchmarks_as_json,
        "evaluate.benchmarks",
    ),
    **{name: JobKind.of(action(name)) for name in SENTENCES},
}


def kind_of(request: Request) -> str:
    """The kind of job of a request."""
    return next(name for name, kind in KINDS.items() if kind.request is type(request))
