"""`moeprune benchmark`: the demo's task offline, jobs, imports, and test sets kept apart."""

import json
import re
import shlex
from importlib.util import find_spec
from pathlib import Path

import pytest
from harness_index import one_index_of_the_harness  # noqa: F401

from analysis.demo.held_out import benchmark_texts
from analysis.demo.tasks import LOCAL_TASKS, write_task
from app.jobs.kinds import KINDS
from pruning.benchmarks.names import harness_names
from pruning.requests.benchmark import RUNS_CODE, BenchmarkRequest
from pruning.spec.base import validated

TASK = "demo-math-exact"
RESULTS = {
    "results": {"arc_easy": {"alias": "arc_easy", "acc,none": 0.5, "acc_stderr,none": 0.01}},
    "config": {"model_dtype": "torch.bfloat16"},
    "lm_eval_version": "0.4.13",
}


@pytest.fixture
def plan(works, here):
    words = ("--criterion", "aimer", "--sparsity", "25%", "-o", "plan.json")
    works("plan", "demo", *words)
    return here / "plan.json"


@pytest.fixture
def problems(here):
    """A corpus that is made of the questions of a benchmark, which lies in the folder `own`."""
    write_task(LOCAL_TASKS[TASK], here / "own" / "benchmark-tasks")
    rows = [
        json.dumps({"prompt": text.prompt, "response": text.response})
        for text in benchmark_texts("demo-math")[:40]
    ]
    (here / "mine.jsonl").write_text("\n".join(rows))
    return here / "mine.jsonl"


def records_in(folder):
    return [json.loads(path.read_text()) for path in sorted(folder.rglob("benchmarks/*"))]


def test_the_demo_and_a_plan_are_benchmarked_offline_and_kept(works, plan, here):
    words = ("benchmark", "demo", "--task", TASK, "--limit", "3", "--stats-dir", here / "own")
    first = works(*words, "-o", "full.json")
    second = works(*words, "--plan", plan)
    by_candidate = {record["candidate"]: record for record in records_in(here / "own")}
    assert set(by_candidate) == {"full", "aimer, 25%"}
    (score,) = by_candidate["full"]["scores"]
    assert (score["task"], score["num_samples"]) == (TASK, 3)
    assert f"{score['value']:.4f}" in first
    assert "aimer, 25%" in second
    assert by_candidate["aimer, 25%"]["plan"]["removed"] == 0.25
    for printed in (first, second):
        (following,) = re.findall(r"next: moeprune (.+)", printed)
        assert "Mean of 1 benchmark: AIMER, 25% " in works(*shlex.split(following), "--force")
    (written,) = json.loads((here / "full.json").read_text())["benchmarks"]
    assert written["scores"] == by_candidate["full"]["scores"]
    assert "/" not in json.dumps(by_candidate["full"]["settings"])
    assert str(here) not in json.dumps(records_in(here / "own"))


def test_a_job_asks_the_same_and_can_be_ended(here):
    request = validated(BenchmarkRequest, {"model": "demo", "tasks": TASK, "limit": 2})
    assert request.command() == f"moeprune benchmark demo --task {TASK} --limit 2"
    raw = request.model_dump(mode="json") | {"stats_dir": str(here / "own")}
    task = KINDS["benchmark"].job(raw)
    phases = []
    for step in task:
        phases.append(step.phase)
        if step.phase == "writing answers":
            task.close()
    assert phases[0] == "making the local tasks"
    assert not list((here / "own").rglob("benchmarks"))


def test_results_of_the_harness_are_taken_in(works, plan, here):
    (here / "results.json").write_text(json.dumps(RESULTS))
    words = ("benchmark", "demo", "--import", "results.json", "--stats-dir", here / "own")
    assert "arc_easy" in works(*words)
    works(*words, "--plan", plan)
    works(*words, "--candidate", "by hand")
    labels = {record["candidate"]: record for record in records_in(here / "own")}
    assert set(labels) == {"full", "aimer, 25%", "by hand"}
    assert labels["by hand"]["plan"] == {}
    assert labels["full"]["made"]["imported_from"] == "results.json"
    assert labels["full"]["scores"][0]["value"] == 0.5


def test_what_is_taken_in_is_shown_alone(works, here):
    own = ("benchmark", "demo", "--stats-dir", here / "own")
    (here / "first.json").write_text(json.dumps(RESULTS))
    other = RESULTS | {"results": {"piqa": RESULTS["results"]["arc_easy"]}}
    (here / "second.json").write_text(json.dumps(other))
    works(*own, "--import", "first.json")
    said = works(*own, "--import", "second.json", "-o", "taken.json")
    assert "piqa" in said
    assert "arc_easy" not in said
    assert "taken.json: 1 candidate, " in said
    (taken,) = json.loads((here / "taken.json").read_text())["benchmarks"]
    assert [score["task"] for score in taken["scores"]] == ["piqa"]
    # Kept are both.
    (record,) = records_in(here / "own")
    assert [score["task"] for score in record["scores"]] == ["arc_easy", "piqa"]


def test_every_task_that_the_harness_marks_as_running_code_is_known():
    # One folder of the harness holds the tasks of a name; some of their files include another's.
    root = Path(find_spec("lm_eval").origin).parent / "tasks"
    marked = {
        path.relative_to(root).parts[0]
        for path in root.rglob("*yaml*")
        if b"unsafe_code: true" in path.read_bytes()
    }
    assert "humaneval" in marked
    assert [folder for folder in sorted(marked) if not folder.startswith(RUNS_CODE)] == []


@pytest.mark.slow
@pytest.mark.usefixtures("one_index_of_the_harness")
def test_every_name_that_the_harness_has_is_read_from_its_files():
    from lm_eval.tasks import TaskManager

    names = set(TaskManager().all_tasks)
    assert len(names) > 10_000
    assert names - set(harness_names()) == set()


@pytest.mark.slow
@pytest.mark.usefixtures("one_index_of_the_harness")
def test_benchmarks_of_the_hub_are_out_of_reach(moeprune, monkeypatch):
    # Read when the library is first imported, so a session with a network asks in vain as well.
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    outcome = moeprune("benchmark", "demo", "--task", "arc_easy")
    assert outcome.code == 1
    assert "The benchmarks arc_easy cannot be loaded" in outcome.err
    assert len(outcome.err.splitlines()) == 1


def test_what_was_allowed_is_said_and_the_benchmark_is_refused(moeprune, works, problems, here):
    stats = ("--stats-dir", here / "own")
    words = ("--tokens", "512", "--seq-len", "64", "--allow-test-set")
    works("calibrate", "demo", "--corpus", problems, *words, *stats)
    (manifest,) = (here / "own").glob("*/manifest.json")
    (corpus,) = json.loads(manifest.read_text())["corpora"]
    assert corpus["prepared"]["test_sets"] == [TASK]
    asked = ("benchmark", "demo", "--task", TASK, "--limit", "1", *stats)
    outcome = moeprune(*asked)
    assert outcome.code == 1
    assert f"has read documents of the test set of {TASK}" in outcome.err
    works(*asked, "--allow-test-set", "-o", "scores.json")
    (record,) = records_in(here / "own")
    assert manifest.parent.name in record["made"]["read_before"][TASK]
    (written,) = json.loads((here / "scores.json").read_text())["benchmarks"]
    assert written["read_before"] == record["made"]["read_before"]


def test_what_curves_were_measured_on_is_refused_as_a_benchmark(moeprune, works, problems, here):
    stats = ("--stats-dir", here / "own")
    words = ("--criterion", "random", "--samples", "1", "--levels", "2", "--allow-test-set")
    works("sensitivity", "demo", "--corpus", problems, *words, *stats)
    outcome = moeprune("benchmark", "demo", "--task", TASK, "--limit", "1", *stats)
    assert outcome.code == 1
    assert f"has read documents of the test set of {TASK}" in outcome.err


@pytest.mark.parametrize(
    "words",
    [
        ("evaluate", "demo", "--corpus"),
        ("sensitivity", "demo", "--criterion", "random", "--corpus"),
        ("calibrate", "demo", "--tokens", "512", "--corpus"),
        ("sweep", "demo", "--criterion", "aimer", "--sparsity", "25%", "--corpus"),
    ],
)
def test_the_questions_of_a_benchmark_are_refused(moeprune, problems, here, words):
    outcome = moeprune(*words, problems, "--stats-dir", here / "own")
    assert outcome.code == 1
    assert f"holds a document of the benchmark {TASK}" in outcome.err
    assert not list((here / "own").glob("*/manifest.json"))
