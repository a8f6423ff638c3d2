"""Keeps selection and test data apart: no corpora from test sets, no benchmarks already read."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from analysis.corpora.account import SKIPPED_ROWS, row_facts
from analysis.corpora.apart import TEST_SETS, is_of_benchmark, open_apart, task_documents
from analysis.corpora.sequences import TokenSequences
from analysis.corpora.sources import Source
from analysis.demo.listing import DEMO_CORPORA
from analysis.errors import CorpusError, PlanError
from analysis.progress import Progress
from analysis.stats.store import StatsStore
from pruning.records.evaluation import EvaluationStore
from pruning.records.sensitivity import SensitivityStore
from pruning.search.store import SearchStore, read_known
from pruning.tasks import Steps

TASKS_FOLDER = "benchmark-tasks"


def open_checked(corpus: str, store: StatsStore, *, allowed: bool, skips: int = 0) -> Source:
    """The documents of a corpus; documents of a benchmark's test set are refused unless allowed.

    `skips` is the number of bad rows that may be left out.

    The demo's corpora contain none by construction. Local tasks lie beside the runs of the store.
    Manifests and results record what was allowed.
    """
    from analysis.corpora.streams import open_corpus

    if corpus in DEMO_CORPORA:
        return open_corpus(corpus)
    documents = task_documents(folder / TASKS_FOLDER for folder in store.directories)
    source = open_apart(corpus, open_corpus, documents, allowed=allowed)
    return replace(source, skips=skips)


def say_skipped(sequences: TokenSequences) -> Steps[None]:
    """Say how many rows were left out of a corpus, if any were."""
    if count := row_facts(sequences.prepared).get(SKIPPED_ROWS):
        rows = "row" if count == 1 else "rows"
        note = f"{count:,} bad {rows} of {sequences.corpus} skipped"
        yield Progress("reading the corpus", 0, 0, note=note)


def read_before(tasks: Sequence[str], store: StatsStore, identity: str) -> dict[str, str]:
    """Task -> a calibration, evaluation, search ... that is known to have read its test set."""
    readers: dict[str, str] = {}
    for name, corpus in _corpora_read(store, identity):
        sets = corpus.get(TEST_SETS)
        for benchmark in sets if isinstance(sets, list) else ():
            for task in tasks:
                if isinstance(benchmark, str) and is_of_benchmark(task, benchmark):
                    readers.setdefault(task, name)
    return readers


def check_unread(readers: Mapping[str, str]) -> None:
    """Refuse benchmarks whose test sets were read in earlier work, see `read_before`."""
    for task, name in readers.items():
        raise CorpusError(
            f"{name} has read documents of the test set of {task}, so the task cannot judge its "
            "results; leave the task out, or add --allow-test-set."
        )


def _corpora_read(store: StatsStore, identity: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """What calibrations, evaluations, curves and searches of a model record of what they read."""
    for run in store.of_model(identity, "routed"):
        for corpus in run.manifest.corpora:
            yield f"the calibration {run.manifest.run_id}", corpus.prepared
    for record in EvaluationStore(store.directories).records(identity):
        yield f"the evaluation {record.record_id}", record.corpus
    for sensitivity in SensitivityStore(store.directories).records(identity):
        yield f"the sensitivity {sensitivity.record_id}", sensitivity.corpus
    for path in SearchStore(store.directories).paths().values():
        try:
            search = read_known(path)
        except PlanError:
            continue  # reported where searches are used
        if search.identity == identity:
            yield f"the search {search.search_id}", search.result.header["corpus"]
