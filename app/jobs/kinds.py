"""Kinds of jobs: what may be asked for, the task that does it, and what the list of jobs says.

Tasks are named, not imported: the dashboard reads this table and loads no models.
"""

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

from analysis.progress import Progress
from pruning.evaluate.benchmarks.record import way_of
from pruning.requests.base import Request, validated
from pruning.requests.benchmark import BenchmarkRequest
from pruning.requests.calibration import CalibrateRequest
from pruning.requests.evaluation import AskRequest, BinsRequest, EvaluateRequest, SweepRequest
from pruning.requests.export import ExportRequest
from pruning.requests.model import WeightsRequest
from pruning.requests.search import SearchRequest
from pruning.requests.variance import VarianceRequest

Result = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class JobKind:
    """One kind of job.

    Args:
        request: what a person asks for.
        task: dotted name of a generator below `pruning.tasks`: request -> steps of progress,
            and as its value a JSON object, the result.
        title: of a job in the list; `{about}` is the model, plan or folder that it is about, and
            `{request}` the request.
        sentence: result -> what the list says of it, and where it leads.
        place: the part of the pages that lists these jobs beside the Start page; see `job_panel`.
        partials: request -> output to delete unless the job ends as done.
    """

    request: type[Request]
    task: str
    title: str
    sentence: Callable[[Result], str]
    place: str = ""
    partials: Callable[[Any], tuple[str, ...]] = lambda _: ()

    def run(self, values: dict[str, Any]) -> Generator[Progress, None, dict[str, Any]]:
        """Start the task on the values of a stored request."""
        module, _, name = self.task.rpartition(".")
        steps: Generator[Progress, None, dict[str, Any]] = getattr(import_module(module), name)(
            validated(self.request, values)
        )
        return steps


def _kept(names: Result | list[Any], what: str, of: str = "") -> str:
    count = len(names)
    return f"1 {what}{of} is kept" if count == 1 else f"{count:,} {what}s{of} are kept"


def _statistics(result: Result) -> str:
    return f"Statistics {result['run_id']} are in the cache."


def _evaluations(result: Result) -> str:
    return f"{_kept(result['evaluations'], 'evaluation')} beside the statistics."


def _benchmarks(result: Result) -> str:
    found = result["benchmarks"]
    ways = {way_of(each["source"], each["settings"]) for each in found}
    candidates = f"{len(found)} candidate{'s' if len(found) > 1 else ''}"
    return f"Scores of {candidates} are under Evaluate, Benchmarks: {'; '.join(ways)}."


def _export(result: Result) -> str:
    written = f"Written to {result['out']}"
    if not (verify := result.get("verify")):
        return written
    passed = sum(check["ok"] for check in verify["checks"])
    said = f"Verified at level {verify['level']}: {passed} of {len(verify['checks'])} checks"
    if (largest := verify.get("max_abs_diff")) is not None:
        said += f", largest logit difference to the masked original {largest:.2g}"
    return f"{said}. {written}"


KINDS: Final[Mapping[str, JobKind]] = {
    "calibrate": JobKind(
        CalibrateRequest,
        "pruning.tasks.calibration.calibrate_task",
        "{about} on {request.corpus}",
        _statistics,
    ),
    "weights": JobKind(
        WeightsRequest, "pruning.tasks.calibration.weights_task", "weights of {about}", _statistics
    ),
    "export": JobKind(
        ExportRequest,
        "pruning.tasks.export.export_task",
        "{about}",
        _export,
        "export",
        lambda request: (f"{request.out}.partial",),
    ),
    "evaluate": JobKind(
        EvaluateRequest,
        "pruning.tasks.evaluation.evaluate_task",
        "evaluation of {about}",
        _evaluations,
        "evaluate.own",
    ),
    "sweep": JobKind(
        SweepRequest,
        "pruning.tasks.evaluation.sweep_task",
        "sweep of {about}",
        _evaluations,
        "evaluate.own",
    ),
    "search": JobKind(
        SearchRequest,
        "pruning.tasks.search.search_task",
        "{about}",
        lambda found: f"The best of {found['candidates']} candidates has {found['fitness']:.4f}.",
    ),
    "benchmark": JobKind(
        BenchmarkRequest,
        "pruning.tasks.benchmark.benchmark_task",
        "benchmarks of {about}",
        _benchmarks,
        "evaluate.benchmarks",
    ),
    "bins": JobKind(
        BinsRequest,
        "pruning.tasks.bins.bins_task",
        "bins of {about} by {request.criterion}",
        lambda result: f"{result['bins']} is kept beside the statistics.",
        "explore.loss",
    ),
    "variance": JobKind(
        VarianceRequest,
        "pruning.tasks.variance.variance_task",
        "hidden states of {about}",
        lambda result: f"{_kept(result['variances'], 'record', ' of hidden states')}.",
        "evaluate.hidden",
    ),
    "ask": JobKind(
        AskRequest,
        "pruning.tasks.probe.ask_task",
        "{about}",
        lambda _: "The answers are under Evaluate, Ask both models.",
        "evaluate.ask",
    ),
}


def kind_of(request: Request) -> str:
    """The kind of job that a request asks for."""
    return next(name for name, kind in KINDS.items() if kind.request is type(request))
