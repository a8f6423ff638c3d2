"""Records of benchmarks: read back, their labels, and the table against the full model."""

import json
from dataclasses import replace

from analysis.model import ModelRef
from pruning.evaluate.benchmarks.record import (
    FULL,
    BenchmarkScore,
    BenchmarkStore,
    Candidate,
    candidate_label,
    new_record,
    settings_of,
)
from pruning.evaluate.benchmarks.table import TABLE_COLUMNS, benchmark_table
from pruning.evaluate.record import PlanFacts

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
    return Candidate(
        ModelRef("tiny", source), ModelRef("out", "f" * 64), label, "b" * 64, PlanFacts(**facts)
    )


def record(label="reap, code+math, 50%", value=0.5, settings=SETTINGS, at="", **of_score):
    of_candidate = candidate(label, {**FACTS, "removed": 0.0} if label == FULL else FACTS)
    score = BenchmarkScore("arc", "acc", value, 0.02, True, 100, **of_score)
    made = new_record(of_candidate, "lm-eval", settings).with_scores([score], "0.4.13", {})
    return made.model_copy(update={"made": {"created_at": at}}) if at else made


def test_a_file_reads_back_as_it_was_written(tmp_path):
    store, wanted = BenchmarkStore([tmp_path]), record()
    path = store.save(wanted)
    assert path.parent == tmp_path / "benchmarks"
    assert store.records("a" * 64) == [wanted]
    assert store.records("c" * 64) == []
    assert store.find(new_record(candidate(), "lm-eval", SETTINGS)) == wanted


def test_other_settings_or_another_candidate_are_another_record():
    names = {
        record().record_id,
        record(settings={**SETTINGS, "limit": 10}).record_id,
        record(FULL).record_id,
        new_record(candidate(source="d" * 64), "lm-eval", SETTINGS).record_id,
        new_record(candidate(), "evalscope", SETTINGS).record_id,
    }
    assert len(names) == 5


def test_a_limit_is_the_same_however_it_is_written():
    names = {settings_of(limit=limit)["limit"] for limit in (100, 100.0)}
    assert [str(name) for name in names] == ["100"]
    assert settings_of(limit=0.5)["limit"] == 0.5


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


def test_only_the_same_version_of_a_task_is_held_against():
    table = benchmark_table([record(FULL, 0.8, version="1"), record(value=0.5, version="2")])
    assert table["full"].isna().tolist() == [False, True]


def test_the_newest_full_result_is_taken():
    of_export = record(FULL, 0.3, at="2026-03-01").model_copy(update={"record_id": "z"})
    table = benchmark_table([of_export, record(FULL, 0.8, at="2026-01-01"), record()])
    assert table["full"].tolist() == [0.3, 0.3, 0.3]


def test_results_without_a_plan_have_gaps_in_the_table():
    bare = new_record(candidate("theirs", {}), "evalscope", {}).with_scores(
        [BenchmarkScore("arc", "acc", 1, higher_is_better=False)], "", {}
    )
    table = benchmark_table([bare])
    assert table[["removed", "bytes", "stderr", "num_samples", "full"]].isna().all(axis=None)
    assert table.loc[0, "criterion"] == ""
    assert benchmark_table([]).empty


def test_a_candidate_s_label_says_what_is_not_usual():
    def label(**unusual):
        return candidate_label(PlanFacts(**{**FACTS, **unusual}))

    assert label(removed=0.0) == FULL
    assert label() == "reap, code+math, 50%"
    unusual = label(schedule="global", granularity="atomic", removed=0.251)
    assert unusual == "reap, code+math, 25%, global, neurons"
    assert label(criterion="", corpora=[]) == "plan, 50%"


def test_a_file_is_plain_json_with_a_schema(tmp_path):
    path = BenchmarkStore([tmp_path]).save(record())
    raw = json.loads(path.read_text())
    assert raw["schema_version"] == 1
    assert raw["scores"][0]["metric"] == "acc"
    assert str(tmp_path) not in path.read_text()
