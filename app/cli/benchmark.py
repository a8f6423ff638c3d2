"""The command that benchmarks, which also imports results of other tools."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from analysis.errors import PlanError
from analysis.model.opening import load_model_index
from app.cli import options
from app.cli.action import show
from app.cli.derive import command
from app.cli.files import write_result
from app.console import finish, follow
from pruning.actions.action import Call
from pruning.actions.benchmark import ACTION
from pruning.benchmarks.record import BenchmarkRecord
from pruning.option import Option
from pruning.plan.plan_file import load_plan
from pruning.requests.benchmark import BenchmarkRequest, ImportRequest
from pruning.spec.base import flags_of, flat_fields
from pruning.tasks.benchmark import benchmarks_as_json, import_results

# What says how benchmarks are run, where results of others are imported.
_OF_RUNS = ("tasks", "limit", "num_fewshot", "chat_template")
_IMPORT = Option(
    "Import a results file of lm-eval; repeatable.",
    ("--import",),
    file="existing",
)


@command(BenchmarkRequest)
def benchmark(
    request: BenchmarkRequest,
    *,
    plans: tuple[Path, ...] = (),
    import_files: tuple[Annotated[Path, _IMPORT], ...] = (),
    candidate: Annotated[
        str, Option("With --import and without --plan: what was benchmarked, in words.")
    ] = "",
    out_file: Annotated[options.Out | None, Option("Also write the scores here, as JSON.")] = None,
) -> None:
    """The action, or the import of results, and their file."""
    model = load_model_index(request.model, revision=request.revision)
    contents = tuple(load_plan(path, model=model).to_dict() for path in plans)
    if import_files:
        records = _import(request, contents, {"files": import_files, "candidate": candidate})
    elif candidate:
        raise PlanError("--candidate goes with --import; a plan says itself what it is.")
    else:
        records = follow(ACTION.run(request))
    outcome = ACTION.tell(Call(request, plans), records)
    show(outcome.shown)
    if out_file:
        write_result(out_file, benchmarks_as_json(records))
    finish(
        f"{out_file or request.model}: {outcome.sentence}",
        {"file": str(out_file) if out_file else None, **outcome.numbers},
        *outcome.following,
    )


def _import(
    request: BenchmarkRequest, plans: Sequence[dict[str, Any]], values: dict[str, Any]
) -> list[BenchmarkRecord]:
    if name := next((field for field in _OF_RUNS if getattr(request, field)), None):
        raise PlanError(
            f"{flags_of(name, flat_fields(BenchmarkRequest)[name])[0]} says what is run, and "
            "--import runs nothing: all results of the file are imported; leave one of the two out."
        )
    if len(plans) > 1:
        raise PlanError("Imported results are of one plan; give --plan once.")
    return import_results(request.into(ImportRequest, plan=plans[0] if plans else None, **values))
