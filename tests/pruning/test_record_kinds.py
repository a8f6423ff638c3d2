"""What every kind of stored record holds, and what each kind refuses.

A new kind of record adds a row to `KINDS`: its store, and changes of its values that no
measurement gives, each with what the refusal says. One of each kind ships, and is changed here.
"""

import json
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from itertools import chain
from pathlib import Path
from pkgutil import walk_packages

import pytest

import pruning
from analysis.errors import StatsError
from analysis.files.shipped import SHIPPED_STATS
from app.cli import COMMANDS
from builders import put, resealed
from pruning.benchmarks.record import BenchmarkStore
from pruning.measurements.records import MeasuredRecord, MeasuredStore, TableStore
from pruning.measurements.shards import FOLDER
from pruning.measures.store import RecordStore
from pruning.records.bins import BinsStore
from pruning.records.evaluation import EvaluationStore
from pruning.records.kept_answers import AnswerStore
from pruning.records.lens import LensStore
from pruning.records.repair import RepairStore
from pruning.records.sensitivity import SensitivityStore
from pruning.records.subsets import SubsetStore
from pruning.records.variances import VarianceStore

ROOT = Path(__file__).parents[2]


def lost(*path):
    """A change of JSON: what lies at the end of a path is gone."""

    def change(raw):
        *where, last = path
        for key in where:
            raw = raw[key]
        del raw[last]

    return change


def no_repair(raw):
    raw.update(layers=[], files={})


# Store -> changes that its kind alone refuses, sealed again, and what is said of them.
KINDS = {
    EvaluationStore: [
        (put("measures", to=["magic"]), "measure 'magic'"),
        (put("measures", to=["nll"]), "answers without right"),
        (lost("right_answers"), "right without the answers"),
        (lambda raw: raw["right_answers"]["right"].pop(), r"\d+ and \d+ answers"),
        (put("right_answers", "right", 0, to=2), r"right_answers\.right\.0"),
        (put("right_answers", "unfinished", to=10**6), "were cut off"),
        (put("plan", to=1), "plan: "),
        (put("plan", "removed", to=1.5), r"plan\.removed: "),
        (put("plan", "removed", to=None), "plan: it lacks removed"),
        (put("plan", "bytes_after", to=-1), r"plan\.bytes_after: "),
        (lost("plan", "gate"), "plan: it lacks gate"),
        (put("corpus", to={}), "corpus: it needs a word for 'name'"),
        (put("settings", "dtype", to=32), "settings: it needs a word for 'dtype'"),
    ],
    SubsetStore: [
        (put("tokens", to=-1), "tokens: "),
        (put("measures", to=["magic"]), "measure 'magic'"),
    ],
    BinsStore: [
        (put("bins", 0, "share", to=0.9), "shares of saliency sum to"),
        (put("bins", 0, "share", to=10**400), r"bins\.0\.share: "),
        (put("bins", 1, "bin", to=0), "has bins .0, 0, 2"),
        (put("bins", 0, "removed", to=-4), "removed: "),
        (put("ranked", to={"criterion": "reap"}), r"ranked\.gate: Field required"),
    ],
    VarianceStore: [
        (put("variances", 0, to=-1e-3), "its variance is -0.001"),
        (put("variances", 1, to="2"), r"variances\.1: "),
        (put("plan", to={}), "plan: it lacks experts_before"),
        (put("corpus", to={"name": 1, "digest": "d"}), "a word for 'name'"),
    ],
    BenchmarkStore: [
        (put("scores", 0, "value", to=1.5), "1.5, but a share of questions"),
        (put("scores", 0, "value", to=10**400), r"scores\.0\.value: "),
        (put("scores", 0, "stderr", to=-0.1), r"scores\.0: The standard error of .* is negative"),
        (put("scores", 0, "num_samples", to=0), "has 0 questions"),
        (put("scores", 0, "task", to=""), "names its task"),
        (put("source", to="elsewhere"), "source: "),
        (put("plan", "corpora", to="code"), r"plan\.corpora: "),
    ],
    AnswerStore: [
        (put("answers", 0, "agreed", to=10**6), "1000000 of .* tokens cannot agree"),
        (put("settings", to={}), "settings: it needs a word for 'dtype'"),
    ],
    LensStore: [
        (put("losses", to=[1.0]), "it has 1 losses of 66 tokens"),
        (put("losses", 0, to=-1.0), "its nll is -1, which"),
        (put("tokens", to=["a"]), "67 ids, 1 tokens"),
        (put("tokens", 0, to="x" * 201), "at most 200 characters"),
        (put("scored_from", to=67), "67 tokens and 0 losses"),
        (put("layers", 0, "gates", to=[0.5]), "layer 0 has another number of gates"),
        (put("layers", 0, "experts", 0, to=32), "token of layer 0 uses expert 32"),
        (put("layers", 0, "top_k", to=3), "layer 0 has 268 choices of 67 tokens"),
        (put("plans", 0, "removed", 0, 0, to=2), "token of layer 0 uses expert 2, which"),
        (put("plans", 0, "removed", to=[[1]]), "a plan has other layers"),
        (put("plans", 0, "losses", to=[]), "it has 0 losses of 66 tokens"),
    ],
    SensitivityStore: [
        (put("points", 0, to=["", 0, 33, 1, "aa"]), "removes 33 of 32"),
        (put("points", 0, to=["", 99, 1, 1, "aa"]), "of other layers"),
        (put("points", 0, to=["1.1", -1, 2, 1, "aa"]), "of other layers"),
    ],
    RepairStore: [
        (put("layers", 0, "layer", to=-1), "layer: "),
        (put("layers", 0, "target", to="norm"), "target: "),
        (put("layers", 0, "damping", to=-0.1), "damping: "),
        (put("layers", 0, "damping", to=0.5), "damping 0.5 is none of"),
        (put("layers", 0, "held_out", "0.1", to=-1.0), "held_out"),
        (put("layers", 0, "held_out", to={"much": 0.5}), "damping .* is none of much"),
        (put("layers", 0, "rounding", to=-1.0), "rounding: "),
        (put("layers", 1, "layer", to=0), "it has layers 0, 0, 2"),
        (put("layers", to=[]), "it has files"),
        (put("files", to={}), "it has files"),
        (put("files", "../plan.json", to="0" * 64), "it has files"),
        (put("files", "layer-00002.safetensors", to="0" * 64), "of another repair"),
        (put("plan_digest", to="0" * 64), "of another repair"),
        (put("corpora", 0, "num_tokens", to=7), "of another repair"),
    ],
}
# What no kind takes.
DAMAGE = [
    (put("schema_version", to=2), "another schema than 1"),
    (put("surplus", to=1), "surplus: Extra inputs"),
    (put("digest", to=[]), "digest: Input should"),
    (put("model", to={"name": 1}), r"model\.\w+: "),
    (put("made", "host", to="\ud800"), "surrogate"),
    (put("made", "seconds", to=float("nan")), "not JSON compliant"),
]
CONTENTS = (b"", b"{", b"[1]", b"{}", b"\xff\xfe", b"[" * 100_000, b'{"a":1,"a":1}')
# Lost fields that another check names, or other words.
LOST = {
    **{(store, "schema_version"): "another schema" for store in KINDS},
    (EvaluationStore, "measures"): "answers without right",
    (RepairStore, "layers"): "it has files",
}
EMPTIED = {RepairStore: no_repair}  # what leaves a record without results, if not its one field


def emptied(store):
    """The change that leaves a record of this store without results."""
    kind = store.kind
    plain = put("made", to={}) if issubclass(kind, MeasuredRecord) else put(kind.measured, to=[])
    return EMPTIED.get(store, plain)


@dataclass(frozen=True)
class Sample:
    """A record that ships, as its file has it, and with its numbers."""

    text: str
    record: object
    other: object  # another record of the kind


@cache
def texts_of(store):
    """Every record of a kind that ships, as the text of a file or a line."""
    folder = SHIPPED_STATS / store.kind.folder
    files = [path.read_text() for path in sorted(folder.glob("*.json"))]
    lines = [path.read_text().splitlines(keepends=True) for path in folder.glob("demo.jsonl")]
    return [*files, *chain(*lines)]


@cache
def sample_of(store):
    kind, shipped = store.kind, store([SHIPPED_STATS])
    text = next(text for text in texts_of(store) if '"right_answers"' in text or store != SUBJECT)
    others = (other for other in texts_of(store) if other != text)
    first, second = (shipped.find(kind.from_json(part, "a line")) for part in (text, next(others)))
    return Sample(text, first, second)


SUBJECT = EvaluationStore  # whose own changes are of a record with answers
every_kind = pytest.mark.parametrize("store", KINDS, ids=lambda store: store.kind.folder)


def test_every_kind_of_record_has_a_row_here():
    for module in walk_packages(pruning.__path__, "pruning."):
        import_module(module.name)
    waiting, stores = [RecordStore], set()
    while waiting:
        subclasses = waiting.pop().__subclasses__()
        waiting += subclasses
        stores |= {store for store in subclasses if hasattr(store, "kind")}
    assert stores == set(KINDS)
    assert len({store.kind.folder for store in KINDS}) == len(KINDS)


@pytest.fixture
def sample(store):
    return sample_of(store)


@pytest.fixture
def stored(store, tmp_path):
    """Write a record into a folder of statistics, with the files that it rests on; its file."""

    def save(record, name="own"):
        root = tmp_path / name
        if issubclass(store, TableStore) and not issubclass(store, MeasuredStore):
            shutil.copytree(SHIPPED_STATS / FOLDER, root / FOLDER, dirs_exist_ok=True)
        files = SHIPPED_STATS / store.kind.folder / record.record_id
        if files.is_dir():
            folder = store([root]).path(record).with_suffix("")
            shutil.copytree(files, folder, dirs_exist_ok=True)
        return store([root]).save(record)

    return save


@every_kind
class TestRecord:
    def test_its_refusals_name_a_command_and_its_files_are_documented(self, store):
        assert store.kind.command in COMMANDS
        page = (ROOT / "docs/reference/files.md").read_text()
        assert f"{store.kind.folder}/<" in page

    def test_what_ships_is_written_as_it_was_read(self, store):
        names = []
        for text in texts_of(store):
            record = store.kind.from_json(text, "a line")
            assert json.loads(record.to_file()) == json.loads(text)
            if "\n" not in text[:-1]:
                assert record.to_line() == text
            assert record.record_id.endswith(record.digest[:8])
            names.append(record.record_id)
        assert names == sorted(set(names))

    def test_it_is_read_back_equal_and_found_by_what_decides_it(self, store, sample, stored):
        record = sample.record
        path = stored(record)
        assert path.name == f"{record.record_id}.json"
        own = store([path.parents[3]])
        assert own.records(on_problem=pytest.fail) == [record]
        assert own.records(record.model.identity) == [record]
        assert own.records("00cd") == []
        bare = record.model_copy(update={"made": {}})
        assert own.find(bare) == record
        other = {"digest": "0" * 64}
        other |= {"request_digest": "0" * 64} if store is RepairStore else {}
        assert own.find(bare.model_copy(update=other)).digest == "0" * 64

    def test_a_store_says_when_its_files_change(self, store, sample, stored, tmp_path):
        own, identity = store([tmp_path / "own"]), sample.record.model.identity
        empty = own.snapshot(identity).cache_key
        assert own.is_empty
        path = stored(sample.record)
        written = own.snapshot(identity).cache_key
        assert empty != written == own.snapshot(identity).cache_key
        assert not own.is_empty
        path.with_suffix(".json.partial").write_text("{")  # the draft of a writer
        assert own.snapshot(identity).cache_key == written
        path.write_text(path.read_text() + " ")
        assert own.snapshot(identity).cache_key != written

    def test_lines_of_a_file_are_read_with_the_files_which_count_first(self, store, sample, stored):
        record, other = sorted((sample.record, sample.other), key=lambda kept: kept.record_id)
        paths = [stored(record), stored(other)]
        lines = [kept.to_line() for kept in (record, other)]
        paths[0].with_name("grid.jsonl").write_text("".join([lines[0], "{}\n", lines[1]]))
        for path in paths:
            if store is not RepairStore:  # whose files lie beside a record's own
                path.unlink()
        problems = []
        own = store([paths[0].parents[3]])
        assert own.records(on_problem=problems.append) == [record, other]
        assert "grid.jsonl:2 has another schema" in str(*problems)
        for kept in (record, other):
            assert own.find(kept.model_copy(update={"made": {}})) == kept
        newer = record.model_copy(update={"made": {**record.made, "device": "another"}})
        own.save(newer)
        assert own.records() == [newer, other]
        assert own.find(record) == newer

    def test_records_of_other_models_are_not_parsed(self, store, sample, stored):
        path, identity = stored(sample.record), sample.record.model.identity
        own, problems = store([path.parents[3]]), []
        own.folder.mkdir(exist_ok=True)  # of earlier versions
        (own.folder / "cut.jsonl").write_text(sample.other.to_line()[:-9] + "\n")
        (own.folder / "cut.json").write_text(sample.other.to_file()[:-9])
        assert own.records("00cd", pytest.fail) == []
        assert own.records(identity, problems.append) == [sample.record]
        assert len(problems) == 2
        (own.folder / "cut.json").write_text("{}\n")  # of no model
        assert own.records("00cd", problems.append) == []
        assert len(problems) == 3

    def test_the_first_directory_decides_and_others_are_read(self, store, sample, stored):
        record, other = sorted((sample.record, sample.other), key=lambda kept: kept.record_id)
        newer = record.model_copy(update={"made": {**record.made, "device": "another"}})
        folders = [stored(kept, name).parents[3] for kept, name in ((record, "b"), (newer, "a"))]
        stored(other, "b")
        both = store(folders[::-1])
        assert both.records(on_problem=pytest.fail) == [newer, other]
        assert both.find(record) == newer

    def test_two_writers_leave_a_whole_record_of_one_of_them(self, store, sample, stored):
        record = sample.record
        own = store([stored(record).parents[3]])
        devices = {"cpu", "one", "two"}

        def write(device):
            changed = record.model_copy(update={"made": {**record.made, "device": device}})
            return [own.kind.read(own.save(changed)).made["device"] for _ in range(5)]

        with ThreadPoolExecutor(2) as writers:
            seen = list(writers.map(write, ("one", "two")))
        assert set().union(*seen) <= devices
        assert len(own.records(on_problem=pytest.fail)) == 1
        files = [path for path in own.path(record).parent.iterdir() if path.is_file()]
        assert [path.suffix for path in files] == [".json"]

    @pytest.mark.parametrize("content", CONTENTS)
    def test_a_damaged_file_is_named_and_the_others_are_read(self, store, sample, stored, content):
        path = stored(sample.record)
        path.with_name("broken.json").write_bytes(content)
        problems = []
        own = store([path.parents[3]])
        assert own.records(on_problem=problems.append) == [sample.record]
        (problem,) = map(str, problems)
        assert problem.startswith(f"The {store.kind.word} broken.json ")

    def test_a_file_that_was_cut_short_is_refused(self, store, sample):
        whole = sample.record.to_file()
        for length in (0, 1, len(whole) // 2, len(whole) - 3):
            refused(store, whole[:length], "cannot be read")

    def test_a_file_that_is_not_there_is_named(self, store, tmp_path):
        word = store.kind.word
        with pytest.raises(StatsError, match=rf"The {word} x\.json cannot be read \(.*No such"):
            store.kind.read(tmp_path / "x.json")

    @pytest.mark.parametrize(("change", "message"), DAMAGE, ids=lambda value: str(value)[:12])
    def test_what_no_kind_takes_is_refused(self, store, sample, change, message):
        raw = json.loads(sample.text)
        change(raw)
        refused(store, json.dumps(raw), message)

    def test_a_field_that_is_lost_is_named(self, store, sample):
        for name in json.loads(sample.text).keys() - store.kind.optional:
            raw = json.loads(sample.text)
            del raw[name]
            refused(store, json.dumps(raw), LOST.get((store, name), name))

    def test_a_record_without_results_is_refused(self, store, sample):
        raw = json.loads(sample.text)
        emptied(store)(raw)
        refused(store, resealed(raw), "it has no results")

    def test_a_changed_value_is_named_and_what_changes_no_number_may_be_sealed(self, store, sample):
        raw = json.loads(sample.text)
        raw["made"] = {**raw["made"], "device": "another"}
        refused(store, json.dumps(raw), "not those that were written; its sha256 differs")
        assert store.kind.from_json(resealed(raw), "x.json").made["device"] == "another"


@pytest.mark.parametrize("store", [store for store in KINDS if issubclass(store, TableStore)])
def test_a_record_whose_numbers_are_gone_is_named(store, sample, stored):
    path = stored(sample.record)
    for shard in path.parents[3].rglob(f"{FOLDER}/*.jsonl"):
        shard.unlink()
    problems = []
    assert store([path.parents[3]]).records(on_problem=problems.append) == []
    (problem,) = map(str, problems)
    named = f"The {store.kind.word} {sample.record.record_id} has no numbers of "
    assert problem.startswith(named)
    again = f"make it again with `moeprune {store.kind.command}`."
    assert problem.endswith(f" in the table of measurements; {again}")


def refused(store, text, message):
    """Parsing this text fails in one line that says what is wrong and what makes it again."""
    kind = store.kind
    with pytest.raises(StatsError) as caught:
        kind.from_json(text, "x.json")
    words = str(caught.value)
    assert re.search(message, words.partition("; delete it")[0])  # not in the command behind it
    assert words.startswith(f"The {kind.word} x.json ")
    assert words.endswith(f"; delete it and make it again with `moeprune {kind.command}`.")
    assert "\n" not in words


OWN = [
    pytest.param(store, change, message, id=f"{store.kind.folder}: {message}")
    for store, changes in KINDS.items()
    for change, message in changes
]


@pytest.mark.parametrize(("store", "change", "message"), OWN)
def test_a_record_that_cannot_be_is_refused_also_where_its_digest_is_right(store, change, message):
    raw = json.loads(sample_of(store).text)
    change(raw)
    refused(store, resealed(raw), message)
