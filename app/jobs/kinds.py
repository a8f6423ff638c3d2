"""Kinds of jobs: request, task, and words in the job list.

Tasks are named, not imported: the dashboard reads this table and must not load torch.
"""

from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

from analysis.progress import Progress
from analysis.stats.manifest import Run
from pruning.benchmarks.record import way_of
from pruning.measures.store import Record
from pruning.requests.benchmark import BenchmarkRequest
from pruning.requests.calibration import CalibrateRequest
from pruning.requests.evaluation import (
    AskRequest,
    BinsRequest,
    EvaluateRequest,
    SensitivityRequest,
    SweepRequest,
    VarianceRequest,
)
from pruning.requests.model import ExportRequest, WeightsRequest
from pruning.requests.recipe_steps import SearchRequest
from pruning.requests.repair import RepairRequest
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

    def run(self, values: dict[str, Any]) -> Generator[Progress, None, dict[str, Any]]:
        """Run the task on a stored request."""
        module, name = self.task.split(".")
        task = getattr(import_module(f"pruning.tasks.{module}"), name)
        return self.result((yield from task(validated(self.request, values))))


def _count_saved(names: Result | list[Any], what: str, of: str = "") -> str:
    count = len(names)
    return f"1 {what}{of} saved" if count == 1 else f"{count:,} {what}s{of} saved"


def _statistics(result: Result) -> str:
    return f"Statistics {result['run_id']} are in the cache."


def _evaluations(result: Result) -> str:
    return f"{_count_saved(result['evaluations'], 'evaluation')} next to the statistics."


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


def _asked(result: Result) -> str:
    words = ["The answers are under Evaluate, Ask both models."] if result["answers"] else []
    words += ["The scored text is under Evaluate, Text lens."] if result.get("lens") else []
    return " ".join(words)


def _run_result(run: Run) -> dict[str, Any]:
    return {"run_id": run.manifest.run_id, "path": str(run.path)}


def _ids(name: str) -> Callable[[Iterable[Record]], dict[str, Any]]:
    return lambda records: {name: [record.record_id for record in records]}


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
    "repair": JobKind(
        RepairRequest,
        "repair.repair_run",
        "repair of {about}",
        lambda result: f"The repair {result['repair']} is saved next to the statistics.",
        lambda record: {"repair": record.record_id},
        "plan",
    ),
    "evaluate": JobKind(
        EvaluateRequest,
        "evaluation.evaluate_run",
        "evaluation of {about}",
        _evaluations,
        _ids("evaluations"),
        "evaluate.own",
    ),
    "sweep": JobKind(
        SweepRequest,
        "evaluation.sweep_run",
        "sweep of {about}",
        _evaluations,
        _ids("evaluations"),
        "evaluate.own",
    ),
    "search": JobKind(
        SearchRequest,
        "search.search_task",
        "{about}",
        lambda result: (
            f"The best of {result['candidates']} candidates has {result['fitness']:.4f}."
        ),
    ),
    "sensitivity": JobKind(
        SensitivityRequest,
        "sensitivity.sensitivity_task",
        "sensitivity of {about} by {request.criterion}",
        lambda result: f"{_count_saved(result['sensitivity'], 'record', ' of sensitivity')}.",
    ),
    "benchmark": JobKind(
        BenchmarkRequest,
        "benchmark.benchmark_run",
        "benchmarks of {about}",
        _benchmarks,
        benchmarks_as_json,
        "evaluate.benchmarks",
    ),
    "bins": JobKind(
        BinsRequest,
        "probe.bins_run",
        "bins of {about} by {request.criterion}",
        lambda result: f"{result['bins']} saved next to the statistics.",
        lambda record: {"bins": record.record_id},
        "explore.loss",
    ),
    "variance": JobKind(
        VarianceRequest,
        "probe.variance_run",
        "hidden states of {about}",
        lambda result: f"{_count_saved(result['variances'], 'record', ' of hidden states')}.",
        lambda records: _ids("variances")(records.values()),
        "evaluate.hidden",
    ),
    "ask": JobKind(
        AskRequest,
        "probe.ask_run",
        "{about}",
        _asked,
        lambda result: {
            "answers": len(result.answers),
            "lens": result.lens.record_id if result.lens else "",
        },
        "evaluate.ask",
    ),
}


def kind_of(request: Request) -> str:
    """The kind of job of a request."""
    return next(name for name, kind in KINDS.items() if kind.request is type(request))
