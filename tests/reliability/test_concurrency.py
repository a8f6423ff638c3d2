"""Eight processes at once on one cache, one job table and the same files: nothing is lost or mixed.

They are forked from a process of their own, which has no threads.
"""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROCESSES, JOBS, RUNS, ROUNDS = 8, 120, 16, 5
# Each prints one line of JSON: what its processes did, in the order of the processes.
CROWD = """
import json, os, sys
from pathlib import Path

def crowd(work, processes):
    readers = []
    for number in range(processes):
        reader, writer = os.pipe()
        if os.fork() == 0:
            try:
                os.write(writer, b"")
                with os.fdopen(writer, "w") as answer:
                    json.dump(work(number), answer)
            except BaseException as error:
                print(repr(error), file=sys.stderr)
                os._exit(1)
            os._exit(0)
        os.close(writer)
        readers.append(reader)
    found = []
    for reader in readers:
        with os.fdopen(reader) as answer:
            found.append(json.load(answer))
    print(json.dumps(found))

root, processes, count = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
"""
CLAIM = """
from app.jobs.model import JobState
from app.jobs.store import JobStore
import app.jobs.store
app.jobs.store._MAX_QUEUED = count
store = JobStore(root / "jobs.sqlite")

def work(number):
    for each in range(number, count, processes):
        store.submit("count", {"n": each}, f"job {each}", "command", "me")
    mine = []
    while True:
        with store.transaction() as jobs:
            waiting = jobs.queued(1)
            if waiting:
                jobs.update(waiting[0].id, state=JobState.RUNNING, pid=os.getpid())
        if not waiting:
            return mine
        store.finish(waiting[0].id, JobState.DONE, result={"by": number})
        mine.append(waiting[0].request["n"])

crowd(work, processes)
"""
SAVE = """
import numpy as np
from analysis.stats.reading import verify_run
from analysis.families.base import MoELayer
from analysis.stats.grid import Grid
from analysis.stats.columns import EXPERT_COLUMNS, LARGEST
from analysis.stats.manifest import CorpusRef, MeasuredModel, RunManifest
from analysis.files.naming import digest_of
from analysis.stats.store import StatsStore
from analysis.stats.writing import save_expert_stats

def work(number):
    saved = []
    # Every run is saved by two processes, at about the same time.
    for each in range(number // 2, count, processes // 2):
        generator = np.random.default_rng(each)
        model = MeasuredModel("tiny", "0" * 64, "olmoe", (MoELayer(1, 5, 2), MoELayer(3, 5, 2)))
        corpus = CorpusRef(f"text{each}", f"{each:064d}", 1, 1, 99, 0, 0, 99)
        digest = digest_of({"run": each})
        settings = {"dtype": "float32"}
        manifest = RunManifest("routed", f"tiny-{each}", digest, model, (corpus,), settings, {})
        table = Grid(model.layers).index()
        names = [each for each in EXPERT_COLUMNS if each not in ("layer", "expert", LARGEST)]
        table = table.assign(**dict.fromkeys(names, generator.integers(1, 99, len(table))))
        saved.append(save_expert_stats(root, manifest, table, generator.random((len(table), 4))))
        for run in StatsStore(root).runs():
            verify_run(run)  # whatever others have saved is whole
    return [run.manifest.run_id for run in saved]

crowd(work, processes)
"""
REWRITE = """
from dataclasses import replace
from analysis.files.durable import write_durably
from analysis.model.opening import load_model_index
from analysis.files.shipped import SHIPPED_STATS
from pruning.records.evaluation import EvaluationStore
from pruning.plan.plan import keep_all
from pruning.requests.recipe_file import load_recipe, recipe_from_yaml, save_recipe
from pruning.search.store import RESULT_NAME, load_search

record = EvaluationStore([SHIPPED_STATS]).records()[0]
plan = keep_all(load_model_index("demo"))
recipe = recipe_from_yaml("model: demo\\ncriterion: aimer\\nbudget: {sparsity: 50%}\\n")
result = load_search(SHIPPED_STATS / "searches" / "demo-reap.json")
places = [root / name for name in ("plan.json", "recipe.yaml", RESULT_NAME)]
places.append(EvaluationStore([root]).path(record))

def write(number):
    # No two are of one length, so that what is mixed of two is neither.
    word = "x" * (1000 * number + 1)
    replace(plan, provenance=replace(plan.provenance, sparsity=word)).save(places[0])
    save_recipe(recipe.model_copy(update={"model": word}), places[1])
    found = result.model_copy(update={"header": {**result.header, "word": word}})
    write_durably(places[2], found.to_json().encode())
    EvaluationStore([root]).save(record.model_copy(update={"made": {"word": word}}))
    return [place.read_bytes() for place in places]

wholes = [set(each) for each in zip(*map(write, range(processes)))]

def work(number):
    partly = 0
    for _ in range(count):
        partly += sum(found not in whole for found, whole in zip(write(number), wholes))
    return partly

crowd(work, processes)
"""


def run_crowd(code, folder, count):
    done = subprocess.run(
        [sys.executable, "-c", CROWD + code, str(folder), str(PROCESSES), str(count)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return json.loads(done.stdout)


def test_each_of_many_jobs_is_claimed_once(tmp_path):
    from app.jobs.model import JobState
    from app.jobs.store import JobStore

    claimed = Counter(number for mine in run_crowd(CLAIM, tmp_path, JOBS) for number in mine)
    assert claimed == Counter(range(JOBS))
    jobs = JobStore(tmp_path / "jobs.sqlite").list(limit=2 * JOBS)
    assert sorted(job.request["n"] for job in jobs) == list(range(JOBS))
    assert {job.state for job in jobs} == {JobState.DONE}
    assert len({job.id for job in jobs}) == JOBS


def test_runs_that_several_processes_save_are_whole(tmp_path):
    from analysis.stats.reading import verify_run
    from analysis.stats.store import StatsStore

    saved = run_crowd(SAVE, tmp_path, RUNS)
    assert {name for mine in saved for name in mine} == {f"tiny-{index}" for index in range(RUNS)}
    store = StatsStore(tmp_path)
    runs = store.runs(pytest.fail)
    assert len(runs) == RUNS
    for run in runs:
        verify_run(run)
    assert sorted(tmp_path.iterdir()) == sorted(run.path for run in runs)


def test_files_that_all_processes_write_are_whole(tmp_path):
    assert run_crowd(REWRITE, tmp_path, ROUNDS) == [0] * PROCESSES
    left = [path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()]
    names = sorted(str(path) for path in left if path.parent.name != "measurements")
    assert names[1:] == ["plan.json", "recipe.yaml", "search.json"]
    assert names[0].startswith("models/")
    assert len(names) == 4
