"""What is told of evaluations: tables with a row for each plan, and notes on the samples."""

from collections.abc import Iterator, Sequence

from analysis.numbers.words import small
from pruning.actions.action import Note, Table
from pruning.measures.result import MEASURES, Metric
from pruning.measures.right_answers import share_words
from pruning.records.evaluation import EvaluationRecord
from pruning.records.quality import LossIncrease


def evaluation_tables(
    records: Sequence[EvaluationRecord], names: Sequence[str]
) -> Iterator[Table | Note]:
    """A row for each plan and corpus, for several of both a table for each corpus; then notes."""
    measured = [name for name in MEASURES if any(name in record.metrics for record in records)]
    rows = [
        (
            name,
            record.corpus["name"],
            f"{record.plan.removed:.1%}",
            *(_metric(record.metrics.get(measure), measure) for measure in measured),
            "-" if (more := loss_increase(record)) is None else f"{more:+z.4f}",
            _metric(record.full.get("nll"), "nll"),
            record.num_tokens,
        )
        for name, record in zip(names, records, strict=True)
    ]
    labels = [MEASURES[measure].label for measure in measured]
    last = ("loss increase", "original loss", "tokens")
    columns = ("plan", "corpus", "sparsity", *labels, *last)
    corpora = {str(record.corpus["name"]): record for record in records}
    tables = {"": rows}
    if 1 < len(corpora) < len(rows):
        columns = ("plan", *columns[2:])
        tables = {name: [(row[0], *row[2:]) for row in rows if row[1] == name] for name in corpora}
    for number, (name, cells) in enumerate(tables.items()):
        title = "\n" * (number > 0) + name
        yield Table(title, columns, cells, last[1:], (*labels, "original loss"))
    for name, first in corpora.items():
        yield Note(
            f"{name}: {first.count.words}, {first.corpus['drawn']}; {first.settings['dtype']}"
        )
        yield Note(f"{name}: [] {first.count.interval_words}")
    for name, record in zip(names, records, strict=True):
        if answers := record.right_answers:
            where = f"{name}, {record.corpus['name']}"
            of = f"{len(answers.right)} questions, {answers.count.interval_words}"
            yield Note(f"{where}: right answers {answers.words} ({of})")


def _metric(metric: Metric | None, measure: str) -> str:
    """Mean and interval."""
    if metric is None or MEASURES[measure].is_percent:
        return "-" if metric is None else share_words(metric)
    ends = [small(bound) for bound in (metric.low, metric.high) if bound is not None]
    return small(metric.mean) + (f" [{', '.join(ends)}]" if ends else "")


def loss_increase(record: EvaluationRecord) -> float | None:
    """Nats per token that a plan adds to the loss; None where nothing goes or was measured."""
    measured, full = record.metrics.get("nll"), record.full.get("nll")
    changes = record.plan.removed or not record.plan.is_plain
    return measured.mean - full.mean if measured and full and changes else None


def loss_increases(records: Sequence[EvaluationRecord], plans: int) -> dict[int, LossIncrease]:
    """What each plan adds to the loss, by its number; those that were measured on every corpus.

    `records` come by corpus and then by plan.
    """
    increases = {}
    for number in range(plans):
        added = {
            str(record.corpus["name"]): loss_increase(record) for record in records[number::plans]
        }
        known = {name: more for name, more in added.items() if more is not None}
        if len(known) == len(added):
            increases[number] = LossIncrease(known)
    return increases
