"""Benchmarks: lm-evaluation-harness on candidates, and imported results of other tools."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from analysis.demo.tasks import LOCAL_TASKS, write_task
from analysis.errors import PlanError, StatsError
from analysis.files.shipped import DEMO_CHECKPOINT, DEMO_MODEL
from analysis.machine.extras import has_extra, install_line
from analysis.model.moe_model import MoEModel
from analysis.model.opening import load_model_index
from analysis.progress import Progress
from analysis.stats.store import StatsStore, stats_store
from pruning.benchmarks.imports import read_results
from pruning.benchmarks.names import check_tasks
from pruning.benchmarks.record import (
    BenchmarkCandidate,
    BenchmarkRecord,
    BenchmarkStore,
    candidate_of_export,
    candidate_of_plan,
    new_benchmark,
)
from pruning.plan.plan import PruningPlan, keep_all, model_ref
from pruning.plan.plan_file import plan_from_dict
from pruning.plan.routing import measured_routing
from pruning.records.plan_facts import PlanFacts
from pruning.requests.benchmark import BenchmarkRequest, ImportRequest
from pruning.surgery.manifest import MANIFEST_NAME, Manifest, read_manifest
from pruning.tasks import Steps
from pruning.tasks.apart import TASKS_FOLDER, check_unread, read_before
from pruning.tasks.loading import check_records_folder, open_plan, quiet_transformers, run_settings
from pruning.tasks.repair import with_repairs


def benchmark_run(request: BenchmarkRequest) -> Steps[list[BenchmarkRecord]]:
    """Benchmark the candidates and store results next to the statistics."""
    if not has_extra("eval"):
        raise StatsError(
            "Benchmarks need lm-evaluation-harness, which is not installed: "
            f"{install_line('eval')}."
        )
    model = load_model_index(request.model, revision=request.revision)
    store = stats_store(request.stats_dir)
    manifest, record_store = _manifest(model), BenchmarkStore(store.directories)
    identity = manifest.source.identity if manifest else model.identity
    check_records_folder(request.stats_dir, record_store, identity)
    candidates = yield from _candidates(request, model, store)
    names = request.tasks
    if not names and identity == load_model_index(DEMO_MODEL).identity:
        names = tuple(LOCAL_TASKS)
    if not names:
        raise StatsError(
            "Name the benchmarks, such as --task arc_challenge --task piqa; `lm_eval ls tasks` "
            "lists them."
        )
    check_tasks(names)
    readers = read_before(names, store, identity)
    if not request.allow_test_set:
        check_unread(readers)
    from pruning.benchmarks.run import Benchmarks, HarnessSettings, run_benchmarks

    quiet_transformers()
    local = []
    for number, name in enumerate(local_names := [name for name in names if name in LOCAL_TASKS]):
        yield Progress("making the local tasks", number, len(local_names), "tasks")
        local.append(write_task(LOCAL_TASKS[name], store.directories[0] / TASKS_FOLDER))
    of_harness = {"limit", "num_fewshot", "chat_template", "template_args", "batch_size"}
    how = request.model_dump(include=of_harness)
    harness = HarnessSettings(names, tuple(task.folder for task in local), **how)
    settings = run_settings(request, 2)  # each task decides the length of its questions
    versions = {task.name: task.version for task in local}
    work = Benchmarks(model, candidates, harness, settings, record_store, versions, readers)
    return (yield from run_benchmarks(work))


def _candidates(
    request: BenchmarkRequest, model: MoEModel, store: StatsStore
) -> Steps[list[tuple[BenchmarkCandidate, PruningPlan | None]]]:
    manifest = _manifest(model)
    if manifest is None:
        if request.source:
            raise PlanError(f"{model.name} is no export; --source goes with one.")
        plans = [open_plan(raw, model, store) for raw in request.plans]
        if request.repair:
            plans = yield from with_repairs(request, model, plans)
        routing = measured_routing(plans, store)
        return [(candidate_of_plan(model, plan, routing), plan) for plan in plans] or [
            (candidate_of_plan(model, keep_all(model)), None)
        ]
    if request.plans:
        raise PlanError(f"{model.name} is an export already; leave --plan out.")
    return [(_export_candidate(model, manifest, request.source, store), None)]


def _manifest(model: MoEModel) -> Manifest | None:
    folder = model.checkpoint.path
    return read_manifest(folder) if (folder / MANIFEST_NAME).is_file() else None


def _export_candidate(
    model: MoEModel, manifest: Manifest, source: str | None, store: StatsStore
) -> BenchmarkCandidate:
    full = load_model_index(source) if source else None
    if not source and DEMO_CHECKPOINT.is_dir():  # the demo is always at hand
        demo = load_model_index(DEMO_MODEL)
        full = demo if demo.identity == manifest.source.identity else None
    routing = measured_routing([manifest.plan], store)
    return candidate_of_export(model, manifest, full, routing=routing)


def benchmarks_as_json(records: Sequence[BenchmarkRecord]) -> dict[str, Any]:
    """Records as plain JSON for jobs and files: ids, candidates, settings and scores.

    `read_before` names the test sets that earlier work with the model has read.
    """
    return {
        "benchmarks": [
            {
                "record_id": record.record_id,
                "candidate": record.candidate,
                "source": record.source,
                "settings": dict(record.settings),
                "read_before": dict(record.made.get("read_before", {})),
                "scores": [asdict(score) for score in record.scores],
            }
            for record in records
        ]
    }


def import_results(request: ImportRequest) -> list[BenchmarkRecord]:
    """Import and store results of other tools, a record per tool and setting.

    Returns the records with the scores of these files alone; stored ones may have more.
    """
    model = load_model_index(request.model, revision=request.revision)
    store = stats_store(request.stats_dir)
    if (manifest := _manifest(model)) is not None:
        if request.plan is not None or request.candidate:
            raise PlanError(
                f"{model.name} is an export, which names its plan itself; leave --plan and "
                "--candidate out."
            )
        candidate = _export_candidate(model, manifest, request.source, store)
    elif request.candidate:
        ref = model_ref(model)
        candidate = BenchmarkCandidate(ref, ref, request.candidate, "", PlanFacts())
    else:
        plan = plan_from_dict(request.plan) if request.plan is not None else keep_all(model)
        candidate = candidate_of_plan(model, plan, measured_routing([plan], store))
    record_store = BenchmarkStore(store.directories)
    records: dict[str, BenchmarkRecord] = {}
    tasks: defaultdict[str, set[str]] = defaultdict(set)
    for path in request.files:
        results = read_results(path)
        record = record_store.find(new_benchmark(candidate, results.settings)).with_scores(
            results.scores, results.tool_version, {**results.run_facts, "imported_from": path.name}
        )
        record_store.save(record)
        records[record.record_id] = record
        tasks[record.record_id] |= {score.task for score in results.scores}
    return [
        record.model_copy(
            update={"scores": tuple(s for s in record.scores if s.task in tasks[name])}
        )
        for name, record in records.items()
    ]
