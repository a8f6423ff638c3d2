"""Finding a model's records: what it gives is what filtering the records of all models gives."""

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from analysis.errors import StatsError
from analysis.files.content import mentions
from analysis.files.naming import digest_of
from analysis.files.shipped import SHIPPED_STATS
from analysis.model.moe_model import ModelRef
from analysis.stats.places import folder_of, record_folders
from pruning.measurements.block import Block, SampleSet
from pruning.measurements.shards import FOLDER
from pruning.measurements.table import Measurements
from pruning.measures.result import SampleSums
from pruning.records.repair import RepairStore
from pruning.records.variances import VarianceStore

MODELS, PLANS = [digit * 64 for digit in "abc"], ("one", "two")


@pytest.fixture(scope="module")
def shipped():
    return VarianceStore([SHIPPED_STATS]).records()[0]


def of(record, identity, name, **made):
    ref = ModelRef("a model", identity)
    changes = {"record_id": name, "digest": digest_of({identity: name}), "model": ref}
    return record.model_copy(update={**changes, "made": {**record.made, **made}})


def facts(records):
    return [record.to_dict() for record in records]


def by_hand(directories):
    """Model -> ids of its records in any file below these folders."""
    ids = {}
    for path in (path for directory in directories for path in directory.rglob("*.json*")):
        text = path.read_text()
        for line in text.splitlines() if path.suffix == ".jsonl" else [text]:
            raw = json.loads(line)
            ids.setdefault(raw["model"]["identity"], set()).add(raw["record_id"])
    return {identity: sorted(names) for identity, names in ids.items()}


@pytest.mark.parametrize("seed", range(8))
def test_a_look_gives_what_filtering_all_records_gives(tmp_path, shipped, seed):
    rng = np.random.default_rng(seed)
    directories = [tmp_path / "own", tmp_path / "ships"]
    stores = [VarianceStore([directory]) for directory in directories]
    for number in range(24):
        identity, store = MODELS[rng.integers(3)], stores[rng.integers(2)]
        record = of(shipped, identity, f"{identity[0]}-{number % 9}", device=f"device {number}")
        store.folder.mkdir(parents=True, exist_ok=True)
        match rng.integers(4):
            case 0 | 1:
                store.save(record)
            case 2:  # as versions before
                (store.folder / f"{record.record_id}.json").write_text(record.to_file())
            case _:  # as what ships
                with (store.folder / f"{rng.integers(2)}.jsonl").open("a") as file:
                    file.write(record.to_line())
    both = VarianceStore(directories)
    everything = both.records(on_problem=pytest.fail)
    assert {record.model.identity for record in everything} == by_hand(directories).keys()
    for identity, ids in by_hand(directories).items():
        own = both.records(identity, pytest.fail)
        assert facts(own) == facts(
            record for record in everything if record.model.identity == identity
        )
        assert [record.record_id for record in own] == ids
        for record in own:
            assert both.find(record).to_dict() == record.to_dict()


def test_what_is_broken_is_named_to_its_own_model(tmp_path, shipped):
    store = VarianceStore([tmp_path])
    own, other = (store.save(of(shipped, identity, "x")) for identity in MODELS[:2])
    other.with_name("broken.json").write_text("{")
    store.folder.mkdir()
    assert [r.record_id for r in store.records(MODELS[0], pytest.fail)] == ["x"]
    own.with_name("cut.json").write_text(own.read_text()[:-9])
    (store.folder / "of no model.json").write_text("{")
    for identity, names in zip(
        (*MODELS, None),
        (["cut", "of no model"], ["broken", "of no model"], ["of no model"], None),
        strict=True,
    ):
        problems = []
        store.records(identity, problems.append)
        named = sorted(str(problem).split(".json")[0] for problem in problems)
        wanted = names or ["broken", "cut", "of no model"]
        assert named == [f"The {store.kind.word} {name}" for name in wanted]


def test_caches_of_a_model_look_at_its_files_alone(tmp_path, shipped):
    store = VarianceStore([tmp_path])
    store.save(of(shipped, MODELS[0], "x"))
    key = store.snapshot(MODELS[0]).cache_key
    store.save(of(shipped, MODELS[1], "y"))
    assert store.snapshot(MODELS[0]).cache_key == key
    assert store.snapshot(MODELS[1]).cache_key != key
    with pytest.raises(TypeError, match="VarianceStore of all models; take a snapshot of one"):
        _ = store.cache_key
    assert store.snapshot(MODELS[2]).is_empty
    store.save(of(shipped, MODELS[0], "z"))
    assert store.snapshot(MODELS[0]).cache_key != key


def test_rows_of_a_model_are_those_of_the_whole_table(tmp_path):
    sums = {"nll": SampleSums(np.ones(2), np.ones(2, np.int64))}
    where, rng = SampleSet("text", "00", "float32", 1), np.random.default_rng(3)
    for number, identity in enumerate(MODELS * 3):
        made = {"number": number}
        shard = [tmp_path, folder_of(tmp_path, identity)][rng.integers(2)] / FOLDER / "rows.jsonl"
        shard.parent.mkdir(parents=True, exist_ok=True)
        with shard.open("ab") as file:
            for plan in PLANS:
                block = Block(identity, plan, (1,), where, 2, ("a", "b"), sums, made)
                file.write(block.to_line())
    whole = Measurements([tmp_path])
    assert whole.problems == []  # lines of all models are read
    for identity in MODELS:
        for plan in PLANS:
            rows = Measurements([tmp_path]).blocks(identity, plan, "float32")
            assert [row.to_line() for row in rows] == [
                row.to_line() for row in whole.blocks(identity, plan, "float32")
            ]
            assert len(rows) == 3
    # What is added is seen, by whoever reads rows of all models too.
    new = replace(rows[0], plan="new")
    for table in (whole, Measurements([tmp_path])):
        table.add([new])
        assert table.blocks(MODELS[2], "new", "float32")


@pytest.mark.parametrize("size", [0, 1, 63, 64, (1 << 20) - 1, 1 << 20, (1 << 20) + 70])
def test_words_are_found_wherever_they_are(tmp_path, size):
    words, path = b"0123456789abcdef" * 4, tmp_path / "file"
    for text in (words, words[:-1] + b"x"):
        for after in (0, 1, 1 << 20):
            content = b"0" * size + text + b"0" * after
            path.write_bytes(content)
            assert mentions(path, words) == (words in content)
    assert mentions(path, b"")


@pytest.mark.parametrize(
    "identity", ["", "../../../x", "ABCD", "a" * 15 + "/" + "b" * 48, "\u0663"]
)
def test_what_is_no_identity_names_no_folder(tmp_path, shipped, identity):
    store = VarianceStore([tmp_path / "own"])
    for use in (
        lambda: record_folders([tmp_path], identity),
        lambda: store.save(of(shipped, identity, "x")),
        lambda: store.records(identity),
        lambda: store.snapshot(identity),
        lambda: Measurements([tmp_path]).blocks(identity, "plan", "float32"),
    ):
        with pytest.raises(StatsError, match=r"is no identity of a model"):
            use()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("way", ["record", "rows", "repair"])
def test_the_names_of_new_folders_are_synced(tmp_path, shipped, monkeypatch, way):
    synced, sync, own = set(), os.fsync, tmp_path / "a" / "own"

    def note(handle):
        synced.add(Path(f"/proc/self/fd/{handle}").resolve())
        sync(handle)

    monkeypatch.setattr("os.fsync", note)
    if way == "record":
        VarianceStore([own]).save(of(shipped, MODELS[0], "x"))
    elif way == "rows":
        sums = {"nll": SampleSums(np.ones(2), np.ones(2, np.int64))}
        where = SampleSet("text", "00", "float32", 1)
        block = Block(MODELS[0], "plan", (1,), where, 2, ("a", "b"), sums, {})
        table = Measurements([own])
        with table.claimed(piece=1):  # makes a folder too
            table.add([block])
    else:
        (made := tmp_path / "made").mkdir()
        (made / "layer").write_bytes(b"")
        record = RepairStore([SHIPPED_STATS]).records()[0]
        RepairStore([own]).finish(record, made)
    # A name is in the folder above: the file of the repair was there before.
    names = [path for path in tmp_path.rglob("*") if path.name not in ("layer", "made")]
    assert names and {path.parent for path in names} <= synced
