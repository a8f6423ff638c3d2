"""Files of records: shipped ones survive, damaged ones are named in one line, stores find them."""

import json

import pytest

from analysis.errors import StatsError
from analysis.stats.store import SHIPPED_STATS
from pruning.evaluate.benchmarks.record import BenchmarkRecord, BenchmarkStore
from pruning.evaluate.bins_record import BinsRecord
from pruning.evaluate.record import EvaluationRecord, EvaluationStore
from pruning.evaluate.variance_record import VarianceRecord

KINDS = (EvaluationRecord, BinsRecord, VarianceRecord, BenchmarkRecord)


def shipped(kind):
    return sorted((SHIPPED_STATS / kind.folder).glob("demo-reap-*.json"))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.folder)
def test_shipped_files_are_written_as_they_were_read(kind):
    paths = sorted((SHIPPED_STATS / kind.folder).glob("*.json"))
    assert len(paths) > 10
    for path in paths:
        record = kind.read(path)
        assert (record.record_id, record.to_json()) == (path.stem, path.read_text())


def updated(*place, **values):
    def change(raw):
        for key in place:
            raw = raw[key]
        raw.update(values)

    return change


def score(**values):
    return updated(scores=[{"task": "arc", "metric": "acc", "value": 0.5, **values}])


DAMAGE = [
    *((kind, updated(schema_version=9), "another schema than 1") for kind in KINDS),
    *((kind, updated(record_id=[]), r"id: (Input should|Extra)") for kind in KINDS),
    *((kind, updated(surplus=1), "surplus: Extra inputs") for kind in KINDS),
    *((kind, updated("made", host="\ud800"), "surrogate") for kind in KINDS),
    *((kind, updated("made", seconds=float("nan")), "not JSON compliant") for kind in KINDS),
    *((kind, lambda raw: raw.pop("made"), "it lacks made") for kind in KINDS),
    (EvaluationRecord, lambda raw: raw.pop("metrics"), "it lacks metrics"),
    (EvaluationRecord, lambda raw: raw.pop("corpus"), "corpus: Field required"),
    (BinsRecord, lambda raw: raw.pop("num_tokens"), "it lacks num_tokens"),
    (EvaluationRecord, updated(metrics={}), "it has no results"),
    (EvaluationRecord, updated(plan=1), "plan: "),
    (EvaluationRecord, lambda raw: raw["plan"].pop("gate"), "plan: it lacks gate"),
    (EvaluationRecord, updated("plan", removed=None), "plan: it lacks removed"),
    (EvaluationRecord, updated("plan", criterion=1), "plan.criterion: "),
    (EvaluationRecord, updated("plan", bytes_after=-1), "plan.bytes_after: "),
    (EvaluationRecord, updated(corpus={}), "corpus: it needs a word for 'name'"),
    (EvaluationRecord, updated("settings", dtype=32), "settings: it needs a word for 'dtype'"),
    (EvaluationRecord, updated("metrics", "kl", mean=10**400), "metrics.kl.mean: "),
    (EvaluationRecord, updated("metrics", "kl", mean="1"), "metrics.kl.mean: "),
    (EvaluationRecord, updated(num_samples=None), "num_samples: "),
    (EvaluationRecord, updated(num_tokens=10**400), "num_tokens: "),
    (BinsRecord, updated(rows=[]), "it has no results"),
    (BinsRecord, updated(rows=[{"bin": 0}]), "rows.0.removed: Field required"),
    (BinsRecord, updated("rows", 0, loss_change="much"), "rows.0.loss_change: "),
    (BinsRecord, updated("rows", 0, loss_change=None), "rows.0.loss_change: "),
    (BinsRecord, updated("rows", 0, share=10**400), "rows.0.share: "),
    (BinsRecord, updated(ranked={"criterion": "reap"}), "ranked.gate: Field required"),
    (BinsRecord, updated("ranked", criterion=7), "ranked.criterion: "),
    (VarianceRecord, updated(variances=[]), "it has no results"),
    (VarianceRecord, updated(variances=[1.0, "2"]), "variances.1: "),
    (VarianceRecord, updated(plan={}), "plan: it lacks experts_before"),
    (VarianceRecord, updated(corpus={"name": 1, "digest": "d"}), "a word for 'name'"),
    (BenchmarkRecord, updated(scores=[]), "it has no results"),
    (BenchmarkRecord, score(value=float("inf")), "not JSON compliant"),
    (BenchmarkRecord, score(value=10**400), "scores.0.value: "),
    (BenchmarkRecord, score(stderr=-1), "scores.0: The standard error of acc of arc is negative"),
    (BenchmarkRecord, score(num_samples=0), "arc has 0 questions"),
    (BenchmarkRecord, score(task=""), "names its task"),
    (BenchmarkRecord, score(value="much"), "scores.0.value: "),
    (BenchmarkRecord, updated(scores=3), "scores: "),
    (BenchmarkRecord, updated(source="elsewhere"), "source: "),
    (BenchmarkRecord, updated(plan=[]), "plan: "),
    (BenchmarkRecord, updated(plan={"corpora": "code"}), "plan.corpora: "),
    (BenchmarkRecord, updated(plan={"removed": "half"}), "plan.removed: "),
    (BenchmarkRecord, updated(candidate=None), "candidate: "),
]


@pytest.mark.parametrize(("kind", "change", "message"), DAMAGE)
def test_damage_is_named_in_one_line(kind, change, message):
    raw = json.loads(shipped(kind)[0].read_text())
    change(raw)
    with pytest.raises(StatsError, match=message) as caught:
        kind.from_json(json.dumps(raw), "x.json")
    said = str(caught.value)
    assert said.startswith(f"The {kind.word} x.json ")
    assert said.endswith(f"; delete it and make it again with `moeprune {kind.command}`.")
    assert "\n" not in said


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[1]", b"\xff\xfe", b"[" * 100_000, b'{"a":1,"a":1}']
)
def test_a_damaged_file_is_reported_and_the_others_are_read(content, tmp_path):
    store, good = BenchmarkStore([tmp_path]), BenchmarkRecord.read(shipped(BenchmarkRecord)[0])
    store.save(good)
    (tmp_path / "benchmarks" / "broken.json").write_bytes(content)
    problems = []
    assert store.records(on_problem=problems.append) == [good]
    (problem,) = map(str, problems)
    assert problem.startswith("The benchmark broken.json ")


def test_a_file_that_cannot_be_opened_is_named(tmp_path):
    with pytest.raises(StatsError, match=r"The evaluation x\.json cannot be read \(.*No such"):
        EvaluationRecord.read(tmp_path / "x.json")


def test_the_first_directory_decides_and_others_are_read(tmp_path):
    one, two = map(EvaluationRecord.read, shipped(EvaluationRecord)[:2])
    mine = EvaluationStore([tmp_path / "a", tmp_path / "b"])
    theirs = EvaluationStore([tmp_path / "b"])
    newer = one.model_copy(update={"num_samples": 1})
    assert mine.save(newer) == tmp_path / "a" / "evaluations" / f"{one.record_id}.json"
    theirs.save(one)
    theirs.save(two)
    assert mine.records(one.model.identity) == [newer, two]
    assert mine.records("another") == []
    assert mine.find(one) == newer
    # The same name, but of another digest: nothing is known of it.
    other = one.model_copy(update={"digest": "0" * 64})
    assert mine.find(other) is other
