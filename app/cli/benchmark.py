"""The command that benchmarks: lm-evaluation-harness, or imported results of other tools."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from analysis.errors import PlanError
from app.cli import options
from app.cli.derive import command
from app.cli.files import check_place, write_result
from app.console import counted, follow, out, show_table
from pruning.requests.base import Option
from pruning.requests.benchmark import BenchmarkRequest, ImportRequest

if TYPE_CHECKING:
    from pruning.evaluate.benchmarks.record import BenchmarkRecord

# What says how benchmarks are run, where results of others are imported.
_OF_RUNS = {
    "tasks": "--tasks",
    "limit": "--limit",
    "num_fewshot": "--num-fewshot",
    "chat_template": "--chat-template",
}


Plans = tuple[
    Annotated[
        options.Plan, Option("plan.json that is masked in the model; repeatable. Default: none.")
    ],
    ...,
]
Files = tuple[
    Annotated[
        Path,
        Option(
            "Import a results file of lm-eval or a report of EvalScope; repeatable.",
            ("--import",),
            file="existing",
        ),
    ],
    ...,
]
Scores = Annotated[Path, Option("Also write the scores here, as JSON.", ("--out", "-o"))]


@command(BenchmarkRequest)
def benchmark(
    request: BenchmarkRequest,
    *,
    plan: Plans = (),
    import_files: Files = (),
    candidate: Annotated[
        str, Option("With --import and without --plan: what was benchmarked, in words.")
    ] = "",
    out_file: Scores | None = None,
) -> None:
    """Run lm-evaluation-harness on a model, on what plans leave of it, or on an export."""
    from analysis.model import load_model_index
    from pruning.plan import load_plan
    from pruning.tasks.benchmark import benchmark_results, benchmark_run

    if out_file:
        check_place(out_file)
    model = load_model_index(request.model, revision=request.revision)
    plans = tuple(load_plan(path, model=model).to_dict() for path in plan)
    if import_files:
        records = _imported(request, plans, {"files": import_files, "candidate": candidate})
    elif candidate:
        raise PlanError("--candidate goes with --import; a plan says itself what it is.")
    else:
        records = follow(benchmark_run(request.into(BenchmarkRequest, plans=plans)))
    _show(records)
    if out_file:
        write_result(out_file, benchmark_results(records))
        out.print(f"{out_file}: {counted(len(records), 'candidate')}", markup=False)


def _imported(
    request: BenchmarkRequest, plans: Sequence[dict[str, Any]], values: dict[str, Any]
) -> "list[BenchmarkRecord]":
    from pruning.tasks.benchmark import import_results

    if given := [option for name, option in _OF_RUNS.items() if getattr(request, name)]:
        raise PlanError(
            f"{given[0]} says what is run, and --import runs nothing: all results of the file are "
            "imported; leave one of the two out."
        )
    if len(plans) > 1:
        raise PlanError("Imported results are of one plan; give --plan once.")
    return import_results(request.into(ImportRequest, plan=plans[0] if plans else None, **values))


def _show(records: "Sequence[BenchmarkRecord]") -> None:
    """Print a table: one row for each score; of groups, the group."""
    from pruning.evaluate.benchmarks.table import benchmark_table

    table = benchmark_table(records)
    table = table.loc[table["group"] == ""]
    columns = ["candidate", "task", "metric", "value", "stderr", "num_samples"]
    shown = table[columns].astype(object).where(table[columns].notna(), "-")
    rows = [
        (
            *(label, task, metric, f"{value:.4f}"),
            error if isinstance(error, str) else f"{error:.4f}",
            count if count == "-" else int(count),
        )
        for label, task, metric, value, error, count in shown.itertuples(index=False, name=None)
    ]
    show_table("", ("candidate", "task", "metric", "value", "std. error", "questions"), rows)
