"""Sweep: every criterion at every sparsity, evaluated with one loaded model."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from analysis.model.opening import load_model_index
from analysis.numbers.words import counted, small
from analysis.stats.store import stats_store
from pruning.actions.action import Action, Call, Outcome, Table
from pruning.actions.evaluation_tables import loss_increase, loss_increases
from pruning.actions.expected import expected_cost
from pruning.measures.result import MEASURES, Metric
from pruning.plan.plan import keep_all
from pruning.plan.sizes import format_bytes
from pruning.records.evaluation import EvaluationRecord, evaluation_table
from pruning.records.quality import LossIncrease
from pruning.requests.evaluation import SweepRequest
from pruning.spec.base import command_line, option_words
from pruning.tasks import Steps
from pruning.tasks.evaluation import evaluate_plans, sweep_plans
from pruning.tasks.memory import sweep_memory


def _run(request: SweepRequest) -> Steps[list[EvaluationRecord]]:
    """Evaluate the original model and every criterion at every sparsity, by corpus and plan."""
    model = load_model_index(request.model, revision=request.revision)
    plans = yield from sweep_plans(request, model, stats_store(request.stats_dir))
    return (yield from evaluate_plans(request, model, [keep_all(model), *plans]))


def _tell(call: Call[SweepRequest], records: Sequence[EvaluationRecord]) -> Outcome:
    """What was measured of each plan, and the report that shows it."""
    request, table = call.request, evaluation_table(records)
    return Outcome(
        f"{len(table)} rows of {counted(len(records), 'evaluation')}",
        {"rows": len(table), "evaluations": len(records)},
        tuple(_tables(records)),
        (command_line("report", request.model, *option_words(request, only=("revision",))),),
        table,
    )


def _tables(records: Sequence[EvaluationRecord]) -> Iterator[Table]:
    """One for each corpus: a row for each plan, a column for each measure.

    Several corpora have one more: the mean of what each plan adds to the loss.
    """
    measured = [name for name in MEASURES if any(name in record.metrics for record in records)]
    columns = ("criterion", "sparsity", *(MEASURES[name].label for name in measured))
    corpora = list(dict.fromkeys(str(record.corpus["name"]) for record in records))
    plans = len(records) // len(corpora)
    for number, corpus in enumerate(corpora):
        of_corpus = records[number * plans : (number + 1) * plans]
        cells = [
            (
                *_swept(record),
                *(_mean(record.metrics.get(name), name) for name in measured),
                "-" if (more := loss_increase(record)) is None else f"{more:+z.4f}",
            )
            for record in of_corpus
        ]
        title = "\n" * (number > 0) + f"{corpus}, {of_corpus[0].settings['dtype']}"
        yield Table(title, (*columns, "loss increase"), cells)
    if len(corpora) > 1:
        yield from _means(records[:plans], loss_increases(records, plans), len(corpora))


def _means(
    plans: Sequence[EvaluationRecord], increases: Mapping[int, LossIncrease], corpora: int
) -> Iterator[Table]:
    """What plans add to the loss over corpora: the smaller budget first, then the best."""
    if not increases:
        return
    budgets = list(dict.fromkeys(record.plan.sparsity for record in plans))
    order = sorted(
        increases,
        key=lambda number: (budgets.index(plans[number].plan.sparsity), increases[number].mean),
    )
    rows = [
        (
            *_swept(plans[number]),
            format_bytes(plans[number].plan.columns["bytes"]),
            f"{increases[number].mean:+z.4f}",
            f"{increases[number].worst:+z.4f}",
            increases[number].worst_on,
        )
        for number in order
    ]
    columns = ("criterion", "sparsity", "size", "mean", "worst", "worst on")
    yield Table(f"\nLoss increase over {corpora} corpora, best first at each size", columns, rows)


def _swept(record: EvaluationRecord) -> tuple[str, str]:
    """The name of a plan of a sweep, and what it removes."""
    name = (record.plan.criterion or "original") + record.plan.variant_words
    return name, f"{record.plan.removed:.1%}"


def _mean(metric: Metric | None, measure: str) -> str:
    """The mean; a percentage where people read it as one."""
    if metric is None:
        return "-"
    return f"{metric.mean:.0%}" if MEASURES[measure].is_percent else small(metric.mean)


ACTION: Final = Action(
    SweepRequest,
    _run,
    _tell,
    "sweep demo --criterion reap --criterion random --sparsity 50% --calibrated-on demo-code "
    "--corpus demo-math --samples 8",
    "sweep of {about}",
    "evaluate.own",
    cost=expected_cost(_run, sweep_memory),
)
