"""The command that benchmarks: lm-evaluation-harness, or imported results of other tools."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from analysis.errors import PlanError
from analysis.files.shipped import DEMO_MODEL
from analysis.model.opening import load_model_index
from analysis.numbers.words import counted
from app.cli import options
from app.cli.derive import command
from app.cli.files import write_result
from app.console import finish, follow, show_table
from pruning.benchmarks.record import FULL, BenchmarkRecord, BenchmarkScore, way_of
from pruning.plan.plan import load_plan
from pruning.requests.benchmark import BenchmarkRequest, ImportRequest
from pruning.requests.following import WEIGHTS_ELSEWHERE, free_name
from pruning.spec.base import Option, command_line, flags_of, flat_fields, option_words
from pruning.tasks.benchmark import benchmark_run, benchmarks_as_json, import_results

# What says how benchmarks are run, where results of others are imported.
_OF_RUNS = ("tasks", "limit", "num_fewshot", "chat_template")
_PLAN_HELP = "plan.json that is masked in the model; repeatable. Default: none."
_IMPORT = Option(
    "Import a results file of lm-eval; repeatable.",
    ("--import",),
    file="existing",
)


@command(BenchmarkRequest)
def benchmark(
    request: BenchmarkRequest,
    *,
    plan: tuple[Annotated[options.Plan, Option(_PLAN_HELP)], ...] = (),
    import_files: tuple[Annotated[Path, _IMPORT], ...] = (),
    candidate: Annotated[
        str, Option("With --import and without --plan: what was benchmarked, in words.")
    ] = "",
    out_file: Annotated[options.Out | None, Option("Also write the scores here, as JSON.")] = None,
) -> None:
    """Run lm-evaluation-harness on a model, on what plans leave of it, or on an export.

    Example: moeprune benchmark demo --plan plan.json --task demo-math-exact --limit 8
    """
    model = load_model_index(request.model, revision=request.revision)
    plans = tuple(load_plan(path, model=model).to_dict() for path in plan)
    if import_files:
        records = _import(request, plans, {"files": import_files, "candidate": candidate})
    elif candidate:
        raise PlanError("--candidate goes with --import; a plan says itself what it is.")
    else:
        records = follow(benchmark_run(request.into(BenchmarkRequest, plans=plans)))
    show_scores(records)
    if out_file:
        write_result(out_file, benchmarks_as_json(records))
    finish(
        f"{out_file or request.model}: {counted(len(records), 'candidate')}",
        {"file": str(out_file) if out_file else None, "candidates": len(records)},
        _next_command(request, records),
    )


def show_scores(records: Sequence[BenchmarkRecord]) -> None:
    """Print a row for each metric, with score and standard error of every candidate beside it."""
    scores = [
        # Of groups, the group.
        {(each.task, each.metric): each for each in record.scores if not each.group}
        for record in records
    ]
    rows = []
    for key in dict.fromkeys(key for each in scores for key in each):
        found = [each.get(key) for each in scores]
        questions = next((each.num_samples for each in found if each and each.num_samples), "-")
        rows.append((*key, questions, *map(_score, found)))
    names = ["original" if each.candidate == FULL else each.candidate for each in records]
    show_table("", ("task", "metric", "questions", *names), rows)


def _score(score: BenchmarkScore | None) -> str:
    """A score, with its standard error where there is one."""
    if score is None:
        return "-"
    return f"{score.value:.4f}" + ("" if score.stderr is None else f"\u00b1{score.stderr:.4f}")


def _next_command(request: BenchmarkRequest, records: Sequence[BenchmarkRecord]) -> str:
    """The command that draws these scores; those of an export are kept with its original model."""
    identity, kept = records[0].model.identity, ["stats_dir"]
    if load_model_index(request.model, revision=request.revision).identity == identity:
        model = request.model
        kept.append("revision")
    elif request.source:
        model = request.source
    else:
        model = (
            DEMO_MODEL if load_model_index(DEMO_MODEL).identity == identity else WEIGHTS_ELSEWHERE
        )
    out_words = ("-o", free_name("benchmarks.html"))
    words = ("--way", way_of(records[0].settings), *option_words(request, only=kept), *out_words)
    return command_line("plot", "own-capability", model, *words)


def _import(
    request: BenchmarkRequest, plans: Sequence[dict[str, Any]], values: dict[str, Any]
) -> list[BenchmarkRecord]:
    if name := next((each for each in _OF_RUNS if getattr(request, each)), None):
        raise PlanError(
            f"{flags_of(name, flat_fields(BenchmarkRequest)[name])[0]} says what is run, and "
            "--import runs nothing: all results of the file are imported; leave one of the two out."
        )
    if len(plans) > 1:
        raise PlanError("Imported results are of one plan; give --plan once.")
    return import_results(request.into(ImportRequest, plan=plans[0] if plans else None, **values))
