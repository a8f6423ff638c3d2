"""Everything of the program that reads what others may have written, listed once.

A reader reads a file and then does with the value what the program does with it, so that a value
which is wrong but was accepted is found where it does harm.
"""

import json
import math
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np
from search_cases import scores, task

from analysis.checkpoint.index import CONFIG_NAME, INDEX_NAME
from analysis.corpora.apart import task_documents
from analysis.corpora.fields import DEFAULT_FIELDS
from analysis.corpora.files import open_documents
from analysis.criteria import get_criterion
from analysis.criteria.base import Criterion
from analysis.drain import drain
from analysis.files.content import file_sha256
from analysis.model.moe_model import MoEModel
from analysis.model.opening import load_model_index
from analysis.ranking.experts import rank_experts
from analysis.ranking.neurons import rank_neurons
from analysis.ranking.published import read_published
from analysis.stats.blend import Mixture
from analysis.stats.manifest import (
    COACTIVATION,
    EXPERTS,
    MANIFEST,
    NEURONS,
    ROUTER,
    SAMPLES,
    SHARDS,
    TRANSITIONS,
    VECTORS,
    WEIGHTS,
    Run,
)
from analysis.stats.neurons import load_neuron_stats
from analysis.stats.reading import (
    load_expert_stats,
    load_sample_stats,
    load_weight_stats,
    read_table,
)
from analysis.stats.shards import stats_at
from analysis.stats.store import StatsStore, read_run
from analysis.stats.tables import ExpertStats
from app.charts.evaluations import evaluation_results
from app.jobs.store import JobStore
from app.session.uploads import uploaded_text
from pruning.benchmarks.imports import read_results
from pruning.benchmarks.record import BenchmarkStore, benchmark_table
from pruning.measurements.block import SEAL
from pruning.measures.points import sample_ids
from pruning.plan.keep_list import read_keep_list
from pruning.plan.plan import PruningPlan, fit_plan, keep_all, model_ref
from pruning.plan.plan_file import load_plan, plan_from_json
from pruning.plan.sizes import size_report
from pruning.planning.files import neurons_of_file
from pruning.records.bins import BinsStore, bins_overview
from pruning.records.evaluation import EvaluationStore
from pruning.records.quality import candidates_at, plan_losses
from pruning.records.variances import VarianceStore, variance_table
from pruning.requests.calibration import CalibrateRequest
from pruning.requests.recipe_file import load_recipe, recipe_from_yaml
from pruning.schedules.counts import read_counts
from pruning.search.evolution import initial_state
from pruning.search.store import load_search, progress_of, search_in
from pruning.spec.base import validated
from pruning.spec.spec import spec_of
from pruning.surgery.manifest import MANIFEST_NAME
from pruning.surgery.verify import verify_export
from tools.reliability import examples, readers_of_models, readers_of_states, readers_of_words
from tools.reliability.mutations import bytes_changed
from tools.reliability.reader import JSON, LINES, TABLE, TENSORS, TEXT, Reader


def _model(folder: str) -> Callable[[Path], MoEModel]:
    def read(root: Path) -> MoEModel:
        model = load_model_index(str(root / folder))
        report = size_report(model, keep_all(model))
        assert 0 <= report.bytes_after <= report.bytes_before
        for entry in model.checkpoint.tensors.values():
            size = (model.checkpoint.path / entry.shard).stat().st_size
            assert 0 <= entry.start <= entry.end <= size
        return model

    return read


def _rank(stats: ExpertStats, criterion: Criterion) -> None:
    ranking = rank_experts(criterion, stats, "applied")
    assert not ranking["saliency"].isna().any()
    assert (
        ranking.groupby("layer")["rank"]
        .apply(lambda ranks: sorted(ranks) == list(range(len(ranks))))
        .all()
    )


def _run(root: Path, name: str) -> Run:
    """A run whose manifest agrees with its files, so that what they hold is read."""
    run = read_run(root / examples.STATS / name)
    files = {file: file_sha256(run.path / file) for file in run.manifest.files}
    return Run(run.path, replace(run.manifest, files=files))


def _experts(root: Path) -> None:
    stats = load_expert_stats(_run(root, "routed"))
    for name in ("reap", "frequency", "mone", "damage", "heapr"):
        _rank(stats, get_criterion(name))


def _weights(root: Path) -> None:
    stats = load_weight_stats(_run(root, "weights"))
    for name in ("aimer", "magnitude", "hoyer"):
        _rank(stats, get_criterion(name))


@contextmanager
def _raised() -> Iterator[Callable[[Exception], None]]:
    """Takes what is wrong with the parts of a store; raises the first in the end."""
    problems: list[Exception] = []
    yield problems.append
    if problems:
        raise problems[0]


def _runs(root: Path) -> None:
    with _raised() as note:
        for run in StatsStore(root / examples.STATS).runs(note):
            assert run.manifest.corpus is not None
            if run.manifest.kind == "routed":
                _rank(load_expert_stats(run), get_criterion("reap"))


def _shards(root: Path) -> None:
    _rank(stats_at(_run(root, "routed"), 2), get_criterion("reap"))


def _vectors(root: Path) -> None:
    runs = [_run(root, name) for name in ("routed", "dense")]
    # Mixed as if they were of different texts.
    (corpus,) = runs[1].manifest.corpora
    other = replace(runs[1].manifest, corpora=(replace(corpus, digest="other"),))
    mixed = Mixture([runs[0], replace(runs[1], manifest=other)]).mixed([1.0, 2.0])
    _rank(mixed, get_criterion("mone"))


def _neurons(root: Path) -> None:
    stats = load_neuron_stats(_run(root, "routed"))
    rank_neurons(get_criterion("heapr"), stats.table)


def _samples(root: Path) -> None:
    stats = load_sample_stats(_run(root, "dense"))
    assert np.isfinite(stats.activation).all()


def _transitions(root: Path) -> None:
    stats = load_sample_stats(_run(root, "dense"))
    assert sum(int(square.sum()) for square in stats.transitions) >= 0


def _other_table(name: str) -> Callable[[Path], object]:
    return lambda root: read_table(_run(root, "routed"), name)


def _documents(name: str) -> Callable[[Path], object]:
    def read(root: Path) -> None:
        documents = open_documents(root / examples.TEXTS / name, DEFAULT_FIELDS)
        numbers = [0, len(documents) - 1, len(documents) // 2]
        for document in documents.read(numbers):
            if document.input_ids is not None:
                assert all(0 <= token < 2**31 for token in document.input_ids)
            if document.text is not None:
                document.text.encode()

    return read


def _plan(name: str) -> Callable[[Path], object]:
    def read(root: Path) -> None:
        model = load_model_index(str(root / examples.MODEL))
        plan = load_plan(root / examples.FILES / name, model=model)
        assert plan_from_json(plan.to_json()) == plan
        assert fit_plan(plan, model).digest == plan.digest
        size_report(model, plan)

    return read


def _recipe(root: Path) -> None:
    recipe = load_recipe(root / examples.FILES / "recipe.yaml")
    assert recipe_from_yaml(recipe.to_yaml()).digest == recipe.digest


def _counts(name: str) -> Callable[[Path], object]:
    def read(root: Path) -> None:
        model = load_model_index(str(root / examples.MODEL))
        kept = read_counts(root / examples.FILES / name, model.layers)
        assert all(0 <= kept[layer.index] <= layer.num_experts for layer in model.layers)

    return read


def _keep_list(name: str) -> Callable[[Path], object]:
    def read(root: Path) -> None:
        model = load_model_index(str(root / examples.MODEL))
        kept = read_keep_list(root / examples.FILES / name, model.layers)
        PruningPlan(model_ref(model), kept)

    return read


def _record(root: Path) -> None:
    with _raised() as note:
        records = EvaluationStore([root / examples.FILES]).records(on_problem=note)
        for record in records:
            record.to_json()
        evaluation_results(records)
        losses = plan_losses(records)
        for share in {loss.facts.removed or 0.0 for loss in losses}:
            candidates_at(losses, share)


def _bins(root: Path) -> None:
    with _raised() as note:
        bins_overview(BinsStore([root / examples.FILES]).records(on_problem=note))


def _variances(root: Path) -> None:
    with _raised() as note:
        records = VarianceStore([root / examples.FILES]).records(on_problem=note)
        variance_table({record.record_id: record for record in records})


def _results(root: Path) -> object:
    return read_results(root / examples.FILES / "lm-eval.json")


def _benchmarks(root: Path) -> None:
    with _raised() as note:
        table = benchmark_table(BenchmarkStore([root / examples.FILES]).records(None, note))
        assert table["value"].notna().all()


def _tasks(root: Path) -> None:
    documents = task_documents([root / examples.FILES / "benchmark-tasks"])
    assert all(isinstance(document, str) for document in (*documents, *documents.values()))


def _published(root: Path) -> None:
    table = read_published(root / examples.FILES / "published.csv")
    assert table["score"].dropna().between(0, 1).all()


def _kept_neurons(root: Path) -> None:
    model = load_model_index(str(root / examples.MODEL))
    path = root / examples.FILES / "kept_neurons.json"
    spec = spec_of(granularity="neuron", criterion="heapr", kept_neurons=path)
    size_report(model, neurons_of_file(spec, model))


def _known_search(root: Path) -> None:
    """As a schedule file, and as what a page offers."""
    path = root / examples.FILES / "known.json"
    if (known := search_in(path)) is not None:
        assert sum(known.kept.values()) >= 0
        order_texts = (known.parameters(), known.uniform, known.recipe)
        assert len(order_texts) == 3


def _search(root: Path) -> None:
    result = load_search(root / examples.FILES / "search.json")
    progress_of(result.history())
    schedule = result.schedule()
    assert (schedule["kept"] + schedule["removed"] == schedule["experts"]).all()
    result.to_json()


def _sealed(line: bytes) -> bytes:
    body, seal, _ = line.rpartition(f'"{SEAL}"'.encode())
    body = body.rstrip(b", ")
    return body + f',"{SEAL}":"{sha256(body).hexdigest()}"}}\n'.encode() if seal else line


def _measurements(root: Path) -> None:
    """As a search resumes from them, and as evaluations read them; lines that are sealed anew."""
    shard = root / examples.FILES / examples.SHARD
    lines = shard.read_bytes().splitlines(keepends=True)
    shard.write_bytes(b"".join(map(_sealed, lines)))
    wanted = task()
    known = scores(root / examples.FILES, wanted)
    state = initial_state(wanted.space, wanted.settings, wanted.seeds)
    known.look_up([candidate.removed for candidate in state.candidates])
    for removed, score in known.known.items():
        assert math.isfinite(score.fitness)
        digest = known.plan_of(removed).digest
        by_sample = known.table.by_sample(known.model, digest, known.dtype, ["nll"])
        assert set(sample_ids(known.sequences)) <= by_sample.keys()
    with _raised() as note:
        for problem in known.table.problems:
            note(problem)


def _export(root: Path) -> None:
    drain(verify_export(root / examples.EXPORT, level="bytes"))


def _jobs(root: Path) -> None:
    store = JobStore(root / examples.STATE / "jobs.sqlite")
    for job in store.list():
        assert 0 <= job.fraction <= 1
        store.tail(job.id)


def _row(root: Path) -> None:
    """The columns of `row.json` as a row of the table, as another program might write it."""
    path = root / examples.STATE / "jobs.sqlite"
    try:
        raw = json.loads((root / examples.STATE / "row.json").read_bytes())
    except (ValueError, RecursionError):
        return  # of this file only the values matter
    row = raw if isinstance(raw, dict) else {}
    with closing(sqlite3.connect(path)) as table, table:
        known = [column for _, column, *_ in table.execute("PRAGMA table_info(jobs)")]
        for name in known:
            value = row.get(name)
            if name != "seq" and value is not None:
                try:
                    table.execute(f"UPDATE jobs SET {name} = ?", (value,))  # noqa: S608
                except (sqlite3.Error, OverflowError, UnicodeError):
                    continue  # the table itself refuses it
    _jobs(root)
    (job,) = JobStore(path).list()
    validated(CalibrateRequest, job.request)


def _upload(name: str) -> Callable[[Path], object]:
    def read(root: Path) -> None:
        uploaded_text(name, (root / examples.FILES / name).read_bytes())

    return read


def _readers() -> Iterator[Reader]:
    yield Reader("config.json", f"{examples.MODEL}/{CONFIG_NAME}", JSON, _model(examples.MODEL))
    for family in examples.FAMILIES:
        yield Reader(f"config.json, {family}", f"{family}/{CONFIG_NAME}", JSON, _model(family))
    shard = "model-00002-of-00004.safetensors"
    yield Reader("safetensors", f"{examples.MODEL}/{shard}", TENSORS, _model(examples.MODEL))
    yield Reader("shard index", f"{examples.MODEL}/{INDEX_NAME}", JSON, _model(examples.MODEL))
    for run in ("routed", "weights", "dense"):
        yield Reader(f"manifest, {run}", f"{examples.STATS}/{run}/{MANIFEST}", JSON, _runs)
    for name, read in (
        (EXPERTS, _experts),
        (SHARDS, _shards),
        (VECTORS, _vectors),
        (NEURONS, _neurons),
        (ROUTER, _other_table(ROUTER)),
        (COACTIVATION, _other_table(COACTIVATION)),
    ):
        yield Reader(name, f"{examples.STATS}/routed/{name}", TABLE, read, bombs=True)
    yield Reader(SAMPLES, f"{examples.STATS}/dense/{SAMPLES}", TABLE, _samples, bombs=True)
    dense = f"{examples.STATS}/dense/{TRANSITIONS}"
    yield Reader(TRANSITIONS, dense, TABLE, _transitions, bombs=True)
    yield Reader(WEIGHTS, f"{examples.STATS}/weights/{WEIGHTS}", TABLE, _weights, bombs=True)
    yield from _reader_of_files()
    yield from _readers_of_texts()
    yield Reader("export manifest", f"{examples.EXPORT}/{MANIFEST_NAME}", JSON, _export)
    yield Reader("export config.json", f"{examples.EXPORT}/{CONFIG_NAME}", JSON, _export)
    yield Reader("job table", f"{examples.STATE}/jobs.sqlite", bytes_changed, _jobs)
    yield Reader("job row", f"{examples.STATE}/row.json", JSON, _row)


def _reader_of_files() -> Iterator[Reader]:
    files = examples.FILES
    yield Reader("plan.json", f"{files}/plan.json", JSON, _plan("plan.json"))
    yield Reader("plan.json, neurons", f"{files}/neurons.json", JSON, _plan("neurons.json"))
    yield Reader("recipe.yaml", f"{files}/recipe.yaml", TEXT, _recipe, lists=True)
    yield Reader("schedule, CSV", f"{files}/counts.csv", TEXT, _counts("counts.csv"))
    yield Reader("schedule, JSON", f"{files}/counts.json", JSON, _counts("counts.json"))
    yield Reader("schedule, YAML", f"{files}/counts.yaml", TEXT, _counts("counts.yaml"))
    yield Reader("keep list", f"{files}/kept.json", JSON, _keep_list("kept.json"))
    yield Reader("keep list, lines", f"{files}/kept.jsonl", LINES, _keep_list("kept.jsonl"))
    yield Reader("evaluation", f"{files}/evaluations/record.json", JSON, _record)
    bins, variances = f"{files}/bins/record.json", f"{files}/variances/record.json"
    yield Reader("record of bins", bins, JSON, _bins)
    yield Reader("record of hidden states", variances, JSON, _variances)
    yield Reader("benchmark", f"{files}/benchmarks/record.json", JSON, _benchmarks)
    task = f"{files}/benchmark-tasks/demo-math-exact-0/demo-math-exact.jsonl"
    yield Reader("benchmark task", task, LINES, _tasks)
    yield Reader("published table", f"{files}/published.csv", TEXT, _published)
    yield Reader("kept_neurons", f"{files}/kept_neurons.json", JSON, _kept_neurons)
    yield Reader("lm-eval.json", f"{files}/lm-eval.json", JSON, _results)
    yield Reader("search.json", f"{files}/search.json", JSON, _search)
    yield Reader("search.json, as a schedule", f"{files}/known.json", JSON, _known_search)
    yield Reader("measurements", f"{files}/{examples.SHARD}", LINES, _measurements)
    yield Reader("upload", f"{files}/recipe.yaml", bytes_changed, _upload("recipe.yaml"))


def _readers_of_texts() -> Iterator[Reader]:
    texts = examples.TEXTS
    yield Reader("corpus .txt", f"{texts}/plain.txt", bytes_changed, _documents("plain.txt"))
    for form in ("rows", "messages", "text", "pairs"):
        lines, table = f"{form}.jsonl", f"{form}.parquet"
        yield Reader(f"corpus .jsonl, {form}", f"{texts}/{lines}", LINES, _documents(lines))
        yield Reader(
            f"corpus .parquet, {form}", f"{texts}/{table}", TABLE, _documents(table), bombs=True
        )
    array = "array.json"
    yield Reader("corpus .json", f"{texts}/{array}", bytes_changed, _documents(array))


READERS = (
    *_readers(),
    *readers_of_models.readers(),
    *readers_of_states.readers(),
    *readers_of_words.readers(),
)


def make_inputs(root: Path) -> None:
    """Fill a folder with a valid example of everything that is read."""
    examples.make_examples(root)
    readers_of_states.make_states(root)
    readers_of_words.make_words(root)


def copied(source: Path, target: Path) -> Path:
    """A copy of the examples, to break."""
    return Path(shutil.copytree(source, target))
