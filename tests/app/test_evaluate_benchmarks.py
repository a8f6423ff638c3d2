"""Evaluate, benchmarks: own results as a leaderboard, runs to queue, the command that imports."""

import json
import shutil

import pytest
from exports import keeping
from page_texts import command, command_lines, texts

from analysis.model.opening import load_model_index
from app.jobs.model import JobState
from app.jobs.runner import LocalRunner
from app.session.job_queue import job_store
from pruning.actions.action import Call
from pruning.actions.listing import action
from pruning.benchmarks.record import (
    BenchmarkScore,
    BenchmarkStore,
    benchmark_settings,
    candidate_of_plan,
    new_benchmark,
)
from pruning.plan.plan import keep_all
from pruning.requests.benchmark import BenchmarkRequest
from pruning.spec.base import validated

BENCHMARKS = "Benchmarks"


@pytest.fixture
def store(stats_dir):
    yield BenchmarkStore([stats_dir])
    for folder in stats_dir.glob("models/*/benchmarks"):
        shutil.rmtree(folder)


@pytest.fixture
def kept(store, models_root):
    """Of `once` the original model and half of its experts, on two tasks."""
    model = load_model_index(str(models_root / "once"))
    half = keeping(model, (0, 1, 2))
    numbers = {"piqa": (0.75, 0.5), "arc": (0.5, 0.375)}
    for place, plan in enumerate((keep_all(model), half)):
        scores = [
            BenchmarkScore(task, "acc", values[place], 0.03) for task, values in numbers.items()
        ]
        record = new_benchmark(candidate_of_plan(model, plan), benchmark_settings())
        store.save(record.with_scores(scores, "0.4.13", {}))


def test_without_results_the_page_says_how_to_get_some(open_page):
    test = open_page("evaluate", model="once", results=BENCHMARKS)
    assert "No benchmark results for this model yet" in test.info[0].value
    assert any("Enter at least one task" in text.value for text in test.text)
    test.text_input(key="bench.run.tasks").set_value("piqa, arc_easy").run()
    test.number_input(key="bench.run.limit").set_value(20).run()
    shown = command(test, "benchmark", "piqa")
    assert "--task piqa --task arc_easy" in shown
    assert "--limit 20" in shown
    assert not test.exception


def test_the_leaderboard_has_the_scores_of_the_records(open_page, kept):
    test = open_page("evaluate", model="once", results=BENCHMARKS)
    table = test.dataframe[0].value.set_index("candidate")
    (pruned,) = set(table.index) - {"Original model"}
    assert table.loc[pruned, ["piqa", "arc"]].tolist() == ["0.500 ± 0.030", "0.375 ± 0.030"]
    assert table.loc["Original model", "average"] == "0.625 ± 0.021"  # 0.03 / sqrt(2)
    assert "average_rank" not in table  # the original model is no rival
    (headline,) = (text.value for text in test.markdown if "has no rival here" in text.value)
    assert headline.endswith("The first keeps least of piqa: 0.500 of 0.750.")
    unmeasured = [text for text in test.text if "plan was not benchmarked" in text.value]
    assert len(unmeasured) == 1
    (profile,) = (json.loads(chart.proto.spec) for chart in test.get("plotly_chart"))
    assert {trace["type"] for trace in profile["data"]} == {"scatter"}
    # The average as the user weighs it, in the table.
    test.select_slider(key="weight.arc").set_value(0.0).run()
    assert (
        test.dataframe[0]
        .value.set_index("candidate")
        .loc["Original model", "average"]
        .startswith("0.750")
    )
    assert not test.exception


def test_a_plan_is_benchmarked_by_the_commands_shown(open_page):
    test = open_page("evaluate", model="once", results=BENCHMARKS)
    test.segmented_control(key="bench.run.what").set_value("plan").run()
    test.text_input(key="bench.run.tasks").set_value("piqa").run()
    assert "--plan plan.json --task piqa" in command(test, "benchmark", "piqa")
    assert any(code.value.startswith("moeprune plan ") for code in test.code)
    test.segmented_control(key="bench.run.what").set_value("export").run()
    assert any("No exports of this model" in text.value for text in test.text)


def test_results_of_elsewhere_are_imported_by_the_command_shown(open_page):
    test = open_page("evaluate", model="once", results=BENCHMARKS)
    shown = [line for line in command_lines(test) if "--import results.json" in line]
    # Without a plan, scores count as the original model's.
    assert ["--plan plan.json" in line for line in shown] == [False, True]
    heads = [text for text in texts(test.text) if text.startswith("Scores of ")]
    assert heads == ["Scores of the original model:", "Scores of this plan:"]


def test_the_queued_run_is_what_the_page_shows_when_it_has_ended(open_page, kept, store):
    # No worker starts: the job's end is written below, as a worker writes it.
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(LocalRunner, "tick", lambda _self: None)
        test = open_page("evaluate", model="once", results=BENCHMARKS)
        test.text_input(key="bench.run.tasks").set_value("piqa").run()
        test.selectbox(key="bench.run.dtype.auto").set_value("float32").run()
        assert "--dtype float32" in command(test, "benchmark", "piqa")
        test.button(key="bench.run.send").click().run()
        (job,) = job_store().list()
        assert job.request["dtype"] == "float32"
        assert len(test.dataframe[0].value) == 2
        model = load_model_index(job.request["model"])
        made = new_benchmark(
            candidate_of_plan(model, keep_all(model)), benchmark_settings(dtype="float32")
        )
        made = made.with_scores([BenchmarkScore("piqa", "acc", 0.25, 0.03)], "0.4.13", {})
        store.save(made)
        with job_store().transaction() as jobs:
            jobs.update(job.id, state=JobState.RUNNING, started_at=job.created_at)
        told = action("benchmark").tell(Call(validated(BenchmarkRequest, job.request)), [made])
        job_store().finish(job.id, JobState.DONE, result=told.plain)
        test.run()
    assert not test.exception
    assert test.selectbox(key="bench.way").value == "lm-eval, float32"
    assert test.dataframe[0].value["candidate"].tolist() == ["Original model"]
    said = "1 candidate, lm-eval, float32. See Evaluate, Benchmarks."
    assert any(text.value.endswith(said) for text in test.text)
    # Once: what the user chooses afterwards stays.
    test.selectbox(key="bench.way").set_value("lm-eval").run()
    test.run()
    assert test.selectbox(key="bench.way").value == "lm-eval"
