"""Records of benchmarks: files read back, damaged ones named, and the table held against full."""

import json
from dataclasses import replace

import pytest

from analysis.errors import StatsError
from analysis.model import ModelRef
from pruning.evaluate.benchmarks.record import (
    BENCHMARKS,
    FULL,
    BenchmarkScore,
    BenchmarkStore,
    Candidate,
    candidate_label,
    new_record,
    settings_of,
)
from pruning.evaluate.benchmarks.table import TABLE_COLUMNS, benchmark_table

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
    return Candidate(ModelRef("tiny", source), ModelRef("out", "f" * 64), label, "b" * 64, facts)


def record(label="reap, code+math, 50%", value=0.5, settings=SETTINGS, at="", **of_score):
    of_candidate = candidate(label, {**FACTS, "removed": 0.0} if label == FULL else FACTS)
    score = BenchmarkScore("arc", "acc", value, 0.02, True, 100, **of_score)
    made = new_record(of_candidate, "lm-eval", settings).with_scores([score], "0.4.13", {})
    return replace(made, made={**made.made, **({"created_at": at} if at else {})})


def test_a_file_reads_back_as_it_was_written(tmp_path):
    store, wanted = BenchmarkStore([tmp_path]), record()
    path = store.save(wanted)
    assert path.parent == tmp_path / "benchmarks"
    assert store.records("a" * 64) == [wanted]
    assert store.records("c" * 64) == []
    assert store.find(new_record(candidate(), "lm-eval", SETTINGS)) == wanted


def test_the_first_directory_decides_and_others_are_read(tmp_path):
    mine, shipped = (
        BenchmarkStore([tmp_path / "a", tmp_path / "b"]),
        BenchmarkStore([tmp_path / "b"]),
    )
    shipped.save(record(value=0.1))
    shipped.save(record(FULL))
    mine.save(record(value=0.9))
    assert sorted(each.scores[0].value for each in mine.records()) == [0.5, 0.9]


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


@pytest.mark.parametrize(
    "damage",
    [
        {"schema_version": 9},
        {"scores": [{"task": "arc", "metric": "acc", "value": float("inf")}]},
        {"scores": [{"task": "arc", "metric": "acc", "value": 1, "stderr": -1}]},
        {"scores": [{"task": "arc", "metric": "acc", "value": 1, "num_samples": 0}]},
        {"scores": [{"task": "", "metric": "acc", "value": 1}]},
        {"scores": [{"task": "arc", "metric": "acc", "value": "much"}]},
        {"scores": 3},
        {"source": "elsewhere"},
        {"plan": []},
        {"plan": {"corpora": "code"}},
        {"plan": {"removed": "half"}},
        {"candidate": None},
    ],
)
def test_damage_is_named_in_one_line(damage):
    raw = json.loads(record().to_json()) | damage
    with pytest.raises(StatsError, match=r"^The benchmark x\.json .* again") as caught:
        BENCHMARKS.from_dict(raw, "x.json")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff\xfe", b"[" * 100_000])
def test_a_damaged_file_is_reported_and_the_others_are_read(content, tmp_path):
    store, good = BenchmarkStore([tmp_path]), record()
    store.save(good)
    (tmp_path / "benchmarks" / "broken.json").write_bytes(content)
    problems = []
    assert store.records(on_problem=problems.append) == [good]
    assert len(problems) == 1
    assert "broken.json" in str(problems[0])


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
    of_export = replace(record(FULL, 0.3, at="2026-03-01"), record_id="z", digest="z")
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
    assert candidate_label({**FACTS, "removed": 0.0}) == FULL
    assert candidate_label(FACTS) == "reap, code+math, 50%"
    unusual = {**FACTS, "schedule": "global", "granularity": "atomic", "removed": 0.251}
    assert candidate_label(unusual) == "reap, code+math, 25%, global, neurons"
    assert candidate_label({**FACTS, "criterion": "", "corpora": []}) == "plan, 50%"


def test_a_file_is_plain_json_with_a_schema(tmp_path):
    path = BenchmarkStore([tmp_path]).save(record())
    raw = json.loads(path.read_text())
    assert raw["schema_version"] == 1
    assert raw["scores"][0]["metric"] == "acc"
    assert str(tmp_path) not in path.read_text()
