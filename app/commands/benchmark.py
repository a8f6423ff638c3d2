"""The command that benchmarks: lm-evaluation-harness, or results of other tools taken in."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from analysis.demo.tasks import LOCAL_TASKS
from analysis.errors import PlanError
from analysis.model import load_model_index
from app.commands import measuring, options
from app.commands.files import check_place, write_result
from app.console import counted, follow, out, show_table
from app.tasks.benchmark import benchmark_results, benchmark_run, import_results
from pruning.evaluate.benchmarks.record import BenchmarkRecord
from pruning.evaluate.benchmarks.table import benchmark_table
from pruning.plan import load_plan
from pruning.requests.base import validated
from pruning.requests.benchmark import BenchmarkRequest, ImportRequest


def benchmark(
    model: options.Model,
    plan: Annotated[
        list[Path] | None,
        typer.Option(help="plan.json that is masked in the model; repeatable. Default: none."),
    ] = None,
    tasks: Annotated[
        str,
        typer.Option(
            help="Tasks or groups of lm-evaluation-harness, joined by commas; default for the "
            f"demo: {','.join(LOCAL_TASKS)}."
        ),
    ] = "",
    limit: Annotated[
        float | None, typer.Option(help="Questions of each task, or a share of them below 1.")
    ] = None,
    num_fewshot: Annotated[
        int | None, typer.Option(help="Examples before each question; default: the task's own.")
    ] = None,
    chat_template: Annotated[
        bool, typer.Option("--chat-template", help="Ask in the tokenizer's chat format.")
    ] = False,
    source: Annotated[
        str | None, typer.Option(help="Full model of an export, for sizes before and after.")
    ] = None,
    import_files: Annotated[
        list[Path] | None,
        typer.Option(
            "--import",
            help="Take in a results file of lm-eval or a report of EvalScope; repeatable.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    candidate: Annotated[
        str, typer.Option(help="With --import and without --plan: what was benchmarked, in words.")
    ] = "",
    out_file: Annotated[
        Path | None, typer.Option("--out", "-o", help="Also write the scores here, as JSON.")
    ] = None,
    dtype: measuring.Dtype = "auto",
    device: measuring.Device = "auto",
    batch_size: measuring.BatchSize = 8,
    allow_test_set: options.AllowTestSet = False,
    revision: options.Revision = None,
    stats_dir: options.StatsDir = None,
    trust_remote_code: measuring.Trust = False,
) -> None:
    """Give a model, what plans leave of it, or an export the tasks of lm-evaluation-harness."""
    if out_file:
        check_place(out_file)
    described = load_model_index(model, revision=revision)
    plans = tuple(load_plan(path, model=described).to_dict() for path in plan or ())
    shared = {"model": model, "source": source, "revision": revision, "stats_dir": stats_dir}
    if import_files:
        _check_alone(
            {
                "--tasks": tasks,
                "--limit": limit,
                "--num-fewshot": num_fewshot,
                "--chat-template": chat_template,
            }
        )
        records = _imported({**shared, "files": import_files, "candidate": candidate}, plans)
    elif candidate:
        raise PlanError("--candidate goes with --import; a plan says itself what it is.")
    else:
        values = {
            **shared,
            "plans": plans,
            "tasks": tasks,
            "limit": limit,
            "num_fewshot": num_fewshot,
            "chat_template": chat_template,
            "dtype": dtype,
            "device": device,
            "batch_size": batch_size,
            "trust_remote_code": trust_remote_code,
            "allow_test_set": allow_test_set,
        }
        records = follow(benchmark_run(validated(BenchmarkRequest, values)))
    _show(records)
    if out_file:
        write_result(out_file, benchmark_results(records))
        out.print(f"{out_file}: {counted(len(records), 'candidate')}", markup=False)


def _check_alone(options_of_runs: Mapping[str, object]) -> None:
    """Refuse options that say how benchmarks are run, where results of others are taken in."""
    if given := [name for name, value in options_of_runs.items() if value]:
        raise PlanError(
            f"{given[0]} says what is run, and --import runs nothing: all results of the file are "
            "taken in; leave one of the two out."
        )


def _imported(values: dict[str, Any], plans: Sequence[dict[str, Any]]) -> list[BenchmarkRecord]:
    if len(plans) > 1:
        raise PlanError("Results that are taken in are of one plan; give --plan once.")
    plan = plans[0] if plans else None
    return import_results(validated(ImportRequest, {**values, "plan": plan}))


def _show(records: Sequence[BenchmarkRecord]) -> None:
    """Print a table: one row for each score; of groups, the group."""
    table = benchmark_table(records)
    table = table.loc[table["group"] == ""]
    columns = ["candidate", "task", "metric", "value", "stderr", "num_samples"]
    shown = table[columns].astype(object).where(table[columns].notna(), "-")
    rows = [
        (label, task, metric, f"{value:.4f}", _error(error), count if count == "-" else int(count))
        for label, task, metric, value, error, count in shown.itertuples(index=False, name=None)
    ]
    show_table("", ("candidate", "task", "metric", "value", "std. error", "questions"), rows)


def _error(error: float | str) -> str:
    return error if isinstance(error, str) else f"{error:.4f}"
