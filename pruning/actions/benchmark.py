"""Benchmarks: lm-evaluation-harness on a model, on plans masked in it, or on an export."""

from collections.abc import Sequence
from typing import Final

from analysis.files.shipped import DEMO_MODEL
from analysis.model.opening import load_model_index
from analysis.numbers.words import counted
from pruning.actions.action import Action, Call, Outcome, Table
from pruning.benchmarks.record import FULL, BenchmarkRecord, BenchmarkScore, way_of
from pruning.requests.benchmark import BenchmarkRequest
from pruning.requests.following import WEIGHTS_ELSEWHERE, free_name
from pruning.spec.base import command_line, option_words
from pruning.tasks.benchmark import benchmark_run, benchmarks_as_json


def _tell(call: Call[BenchmarkRequest], records: Sequence[BenchmarkRecord]) -> Outcome:
    """The scores of all candidates, and the command that draws them."""
    return Outcome(
        f"{counted(len(records), 'candidate')}, {'; '.join(sorted(_ways(records)))}",
        {"candidates": len(records), **benchmarks_as_json(records)},
        (_scores(records),),
        (_next_command(call.request, records),),
    )


def _ways(records: Sequence[BenchmarkRecord]) -> set[str]:
    return {way_of(record.settings) for record in records}


def _scores(records: Sequence[BenchmarkRecord]) -> Table:
    """A row for each metric, with score and standard error of every candidate beside it."""
    scores = [
        # Of groups, the group.
        {(score.task, score.metric): score for score in record.scores if not score.group}
        for record in records
    ]
    rows = []
    for key in dict.fromkeys(key for candidate in scores for key in candidate):
        found = [candidate.get(key) for candidate in scores]
        questions = next((score.num_samples for score in found if score and score.num_samples), "-")
        rows.append((*key, questions, *map(_in_words, found)))
    names = ["original" if record.candidate == FULL else record.candidate for record in records]
    return Table("", ("task", "metric", "questions", *names), rows)


def _in_words(score: BenchmarkScore | None) -> str:
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


ACTION: Final = Action(
    BenchmarkRequest,
    benchmark_run,
    _tell,
    "benchmark demo --plan plan.json --task demo-math-exact --limit 8",
    "benchmarks of {about}",
    "evaluate.benchmarks",
)
