"""Records of benchmarks: read back, labelled, against the original model; the shipped ones."""

from dataclasses import replace

import pytest

from analysis.calibration.loading import CalibrationSettings
from analysis.corpora.spec import CorpusWeight
from analysis.criteria import get_criterion
from analysis.demo.tasks import LOCAL_TASKS, write_task
from analysis.drain import drain
from analysis.files.shipped import SHIPPED_STATS
from analysis.model.moe_model import ModelRef
from analysis.ranking.choose import choose_stats
from analysis.ranking.experts import rank_experts
from analysis.stats.store import StatsStore
from pruning.benchmarks.record import (
    FULL,
    TABLE_COLUMNS,
    BenchmarkCandidate,
    BenchmarkScore,
    BenchmarkStore,
    benchmark_settings,
    benchmark_table,
    candidate_label,
    candidate_of_plan,
    new_benchmark,
)
from pruning.benchmarks.run import Benchmarks, HarnessSettings, run_benchmarks
from pruning.plan.plan import keep_all, model_ref
from pruning.plan.selection import select_experts
from pruning.records.plan_facts import PlanFacts, plan_facts
from pruning.schedules import uniform

SETTINGS = {"limit": None, "num_fewshot": None, "dtype": "bfloat16"}
FACTS = {
    "criterion": "reap",
    "gate": "applied",
    "corpora": ["code", "math"],
    "schedule": "uniform",
    "sparsity": "50%",
    "granularity": "expert",
    "removed": 0.5,
    "bytes_after": 600,
}


def candidate(label="reap, code+math, 50%", facts=FACTS, source="a" * 64):
    return BenchmarkCandidate(
        ModelRef("tiny", source), ModelRef("out", "f" * 64), label, "b" * 64, PlanFacts(**facts)
    )


def record(label="reap, code+math, 50%", value=0.5, settings=SETTINGS, at="", **of_score):
    of_candidate = candidate(label, {**FACTS, "removed": 0.0} if label == FULL else FACTS)
    score = BenchmarkScore("arc", "acc", value, 0.02, True, 100, **of_score)
    made = new_benchmark(of_candidate, settings).with_scores([score], "0.4.13", {})
    return made.model_copy(update={"made": {"created_at": at}}) if at else made


def test_other_settings_or_another_candidate_are_another_record():
    names = {
        record().record_id,
        record(settings={**SETTINGS, "limit": 10}).record_id,
        record(FULL).record_id,
        new_benchmark(candidate(source="d" * 64), SETTINGS).record_id,
    }
    assert len(names) == 4


def test_a_limit_is_the_same_however_it_is_written():
    names = {benchmark_settings(limit=limit)["limit"] for limit in (100, 100.0)}
    assert [str(name) for name in names] == ["100"]
    assert benchmark_settings(limit=0.5)["limit"] == 0.5


def test_scores_of_a_task_replace_those_it_had():
    first = record()
    other = BenchmarkScore("piqa", "acc", 0.3)
    both = first.with_scores([other], "0.4.14", {"device": "cpu"})
    assert [(score.task, score.value) for score in both.scores] == [("arc", 0.5), ("piqa", 0.3)]
    again = both.with_scores([replace(other, value=0.4)], "0.4.14", {})
    assert [score.value for score in again.of_task("piqa")] == [0.4]
    assert again.of_task("piqa", "other version") == ()


def test_the_table_has_a_row_a_score_beside_the_full_model_s():
    records = [
        record(FULL, 0.8, at="2026-01-01"),
        record(FULL, 0.7, settings={**SETTINGS, "limit": 10}),
        record(value=0.5, at="2026-01-02"),
    ]
    table = benchmark_table(records)
    assert tuple(table.columns) == TABLE_COLUMNS
    assert table["full"].tolist() == [0.8, 0.7, 0.8]
    assert table["full_stderr"].tolist() == [0.02] * 3
    assert table["removed"].tolist() == [0.0, 0.0, 0.5]
    assert table["calibrated_on"].tolist() == ["code+math"] * 3
    assert table["bytes"].tolist() == [600.0] * 3
    # Only scores of the same version of a task are comparable; the newest full result counts.
    versions = benchmark_table([record(FULL, 0.8, version="1"), record(value=0.5, version="2")])
    assert versions["full"].isna().tolist() == [False, True]
    of_export = record(FULL, 0.3, at="2026-03-01").model_copy(update={"record_id": "z"})
    table = benchmark_table([of_export, record(FULL, 0.8, at="2026-01-01"), record()])
    assert table["full"].tolist() == [0.3, 0.3, 0.3]


def test_a_candidate_s_label_says_what_is_not_usual():
    def label(**unusual):
        return candidate_label(PlanFacts(**{**FACTS, **unusual}))

    assert label(removed=0.0) == FULL
    assert label() == "reap, code+math, 50%"
    unusual = label(schedule="global", granularity="neuron", removed=0.251)
    assert unusual == "reap, code+math, 25%, global, neurons"
    assert label(criterion="", corpora=[]) == "plan, 50%"
    repaired = {"repair": "r", "repaired_on": ("code", "math")}
    assert label(**repaired) == "reap, code+math, 50% + repair"
    assert label(**repaired, corpora=["code"]) == "reap, code, 50% + repair on code+math"
    fitted = label(**repaired, repair_tokens=65_280)
    assert fitted == "reap, code+math, 50% + repair on 65k tokens"
    fitted = label(**repaired, corpora=["code"], repair_tokens=4096)
    assert fitted == "reap, code, 50% + repair on 4,096 tokens of code+math"
    assert label(repair="r") == "reap, code+math, 50% + repair on unknown"


EXACT = LOCAL_TASKS["demo-math-exact"]


RANDOM_DRAWS = ("random", *(f"random:{seed}" for seed in range(1, 5)))


@pytest.fixture(scope="module")
def shipped(demo):
    records = BenchmarkStore([SHIPPED_STATS]).records(demo.identity, pytest.fail)
    return {record.candidate: record for record in records}


def test_every_candidate_was_given_all_tasks(shipped):
    wanted = {FULL}
    for share in ("25%", "50%"):
        wanted |= {f"{criterion}, {share}" for criterion in ("aimer", *RANDOM_DRAWS)}
        for criterion in ("reap", "frequency", "man"):
            wanted |= {f"{criterion}, demo-{text}, {share}" for text in ("code", "stories", "math")}
    assert wanted == set(shipped)
    for record in shipped.values():
        assert {score.task for score in record.scores} == set(LOCAL_TASKS)
        assert record.candidate == candidate_label(record.plan)
        assert record.settings["limit"] is None


def test_they_are_precise_enough_to_compare(shipped):
    table = benchmark_table(shipped.values())
    assert len(table) == 4 * len(shipped)
    assert (table["stderr"] < 0.04).all()
    assert table["value"].between(0, 1).all()
    # Every one has its original model beside it.
    assert table["full"].notna().all()
    whole = table.loc[table["candidate"] == FULL]
    assert (whole["value"] == whole["full"]).all()
    # Four choices are guessed right one time in four, an answer never.
    chance = whole["metric"].map(lambda name: 0.25 if name.startswith("acc") else 0.0)
    assert (whole["value"] > chance + 5 * whole["stderr"]).all()


@pytest.mark.parametrize("task", LOCAL_TASKS.values(), ids=LOCAL_TASKS)
def test_they_are_of_the_tasks_as_they_are_built_today(shipped, task, tmp_path):
    version = write_task(task, tmp_path).version
    assert {record.of_task(task.name)[0].version for record in shipped.values()} == {version}


def test_their_plans_are_those_that_the_shipped_statistics_give(shipped, demo):
    reap = get_criterion("reap")
    for text in ("code", "stories", "math"):
        corpus = CorpusWeight(f"demo-{text}")
        stats = choose_stats(reap, StatsStore(SHIPPED_STATS), demo, [corpus]).stats
        ranking = rank_experts(reap, stats, "applied")
        plan = select_experts(ranking, uniform(demo.layers, "50%"), model=model_ref(demo))
        record = shipped[f"reap, demo-{text}, 50%"]
        assert record.plan_digest == plan.digest
        assert record.plan.bytes_after == plan_facts(plan, demo).bytes_after


@pytest.mark.slow
def test_the_full_model_s_can_be_made_again(shipped, demo, tmp_path):
    written = write_task(EXACT, tmp_path)
    asked = HarnessSettings((EXACT.name,), (written.folder,), batch_size=16)
    settings = CalibrationSettings(seq_len=2, dtype="float32", device="cpu")
    candidates = [(candidate_of_plan(demo, keep_all(demo)), None)]
    store = BenchmarkStore([tmp_path])
    (again,) = drain(run_benchmarks(Benchmarks(demo, candidates, asked, settings, store)))
    (score,), (known,) = again.scores, shipped[FULL].of_task(EXACT.name)
    # Another machine adds in another order, which may turn an answer or two of 240.
    assert score.value == pytest.approx(known.value, abs=0.01)
    assert again.record_id == shipped[FULL].record_id


def test_results_without_a_plan_have_gaps_in_the_table():
    bare = new_benchmark(candidate("theirs", {}), {}).with_scores(
        [BenchmarkScore("arc", "acc", 1, higher_is_better=False)], "", {}
    )
    table = benchmark_table([bare])
    assert table[["removed", "bytes", "stderr", "num_samples", "full"]].isna().all(axis=None)
    assert table.loc[0, "criterion"] == ""
    assert benchmark_table([]).empty
