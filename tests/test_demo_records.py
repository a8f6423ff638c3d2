"""The table of what ships with the demo, and how its records are rebuilt, compared and shipped."""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from analysis.errors import StatsError, UserError
from analysis.files.shipped import DEMO_MODEL, SHIPPED_VARIABLE
from analysis.model.opening import load_model_index
from analysis.stats.places import APP_NAME, folder_of
from pruning.measurements.block import ORIGINAL, Block
from pruning.measurements.shards import FOLDER
from pruning.measurements.table import Measurements
from pruning.measures.result import SampleSums
from pruning.records.evaluation import EvaluationStore
from tools.demo.__main__ import summary
from tools.demo.building import Build, needed_steps, with_needed
from tools.demo.checking import Outcome, check, chosen, parts_for
from tools.demo.comparing import CACHED, Difference, differences, made, shipped
from tools.demo.orders import WEIGHTS, Key, Order, Step, narrowed, plans_by
from tools.demo.rows import Whole, forget
from tools.demo.shipping import shard_of, ship
from tools.demo.steps import STEPS
from tools.demo.work import ROOT, Stored, Work, worker_environment

MATH = "demo-math"
RANDOM = [
    Key("evaluations", plan.about, MATH)
    for plan in plans_by(("random",), ((),), [{"sparsity": share} for share in ("25%", "50%")])
]
TINY = narrowed(STEPS, {*RANDOM, Key(WEIGHTS)})


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """The folder that steps work in, before any has run."""
    work = Work(tmp_path_factory.mktemp("work"))
    work.prepare()
    return work


@pytest.fixture(scope="module")
def killed(work):
    """A build of two steps that need no text, and the files of the one that was killed."""
    build = Build(work, TINY, "inputs", frozenset({*RANDOM, Key(WEIGHTS)}))
    (work.folder / "keys.json").write_text(json.dumps(RANDOM))
    (compared,) = (step for step in TINY if step.name == "compared")
    words = [str(work.folder), compared.name, build.digest(compared)]
    process = subprocess.Popen(
        [sys.executable, "-m", "tools.demo.worker", *words, str(work.folder / "keys.json")],
        cwd=work.tree,
        env=worker_environment(work.tree),
    )
    folder = folder_of(work.stats, load_model_index(DEMO_MODEL).identity) / "evaluations"
    while not list(folder.glob("*.json")):
        assert process.poll() is None
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not build.is_done(compared)
    return build, {path: path.stat().st_mtime_ns for path in folder.glob("*.json")}


@pytest.fixture(scope="module")
def built(killed):
    build, _ = killed
    build.run(processes=2)
    return build


def of(step):
    return {(step.ships, key): count for key, count in step.keys().items()} if step.ships else {}


def test_the_table_has_every_shipped_record_and_no_other():
    shipped_keys = Counter[tuple[str, Key]]()
    places = {(step.ships, step.kind) for step in STEPS if step.ships}
    for place, kind in places:
        step = Step("", (Order("", kind),), place)
        for key, records in shipped([step]).items():
            shipped_keys[place, key] += len(records)
    listed = sum((Counter(of(step)) for step in STEPS), Counter())
    assert shipped_keys == listed
    files = {path for path in (ROOT / CACHED).rglob("*") if path.is_file()}
    files -= set((ROOT / CACHED / "published").iterdir())
    records = [rival for rivals in shipped(STEPS).values() for rival in rivals]
    shards = {shard_of(_place(record), record.whole.kind) for record in records if record.whole}
    assert files <= shards | {path for record in records for path in _paths(record)}


def _place(record: Stored) -> Path:
    """What it ships in: a file of lines, or a folder."""
    return record.path if record.path.suffix == ".jsonl" else record.path.parent


def test_the_table_ships_the_rows_that_records_read_and_no_other():
    by_place = defaultdict[Path, list[Stored]](list)
    for record in (rival for rivals in shipped(STEPS).values() for rival in rivals):
        if record.whole:
            by_place[_place(record)].append(record)
    for place, records in by_place.items():
        whole = records[0].whole
        shard = shard_of(place, whole.kind).read_bytes().splitlines(keepends=True)
        ships = rows_of(map(Block.from_line, shard))
        assert max(ships.values()) == 1
        assert ships == rows_of(whole.blocks(record.name for record in records))


def test_batches_of_a_set_ship_as_one_block(tmp_path):
    shutil.copytree(ROOT / CACHED / "sensitivity", tmp_path / "sensitivity")
    names = [path.stem for path in (tmp_path / "sensitivity").glob("*.json")]
    whole = Whole(ROOT / CACHED, "sensitivity").blocks(names)
    batches = [part for block in whole for part in _batches(block, 12)]
    assert len(batches) > 2 * len(whole)
    (tmp_path / FOLDER).mkdir()
    shard = tmp_path / FOLDER / "shard.jsonl"
    shard.write_bytes(b"".join(batch.to_line() for batch in batches))
    again = Whole(tmp_path, "sensitivity")
    assert sorted(map(values_of, again.blocks(names))) == sorted(map(values_of, whole))
    # Without one record, what the others read stays.
    forget(tmp_path, [tmp_path / "sensitivity" / f"{names[0]}.json"])
    (tmp_path / "sensitivity" / f"{names[0]}.json").unlink()
    assert 0 < len(shard.read_bytes().splitlines()) < len(batches)
    rest = Whole(tmp_path, "sensitivity")
    assert [rest.facts(name) for name in names[1:]] == [again.facts(name) for name in names[1:]]


def _batches(block, size):
    for start in range(0, len(block.samples), size):
        part = slice(start, start + size)
        sums = {
            name: SampleSums(one.sums[part], one.counts[part], one.documents[part])
            for name, one in block.sums.items()
        }
        yield replace(block, samples=block.samples[part], sums=sums)


def values_of(block):
    """All numbers of a block, however its samples are ordered."""
    numbers = [
        (name, *row)
        for name, one in block.sums.items()
        for row in zip(
            block.samples, one.documents, one.counts.tolist(), one.sums.tolist(), strict=True
        )
    ]
    return block.plan, block.where.digest, block.where.dtype, block.num_samples, sorted(numbers)


def rows_of(blocks):
    return Counter(
        (block.model, block.plan, block.where, measure, sample)
        for block in blocks
        for measure in block.sums
        for sample in block.samples
    )


def _paths(record: Stored) -> tuple[Path, ...]:
    return (record.path, *record.files)


def test_steps_need_what_earlier_ones_make():
    needs, earlier = needed_steps(STEPS), list[str]()
    for step in STEPS:
        assert set(needs[step.name]) <= set(earlier), step.name
        earlier.append(step.name)
        others = {key for step in STEPS for key in [*step.keys()]}
        # A plan by curves reads those of every corpus that has some.
        missing = {key for key in step.needs() - others if key.kind != "sensitivity"}
        assert not missing, step.name
    assert needs["answers"] == ["calibrations", "repairs"]
    names = [step.name for step in with_needed(STEPS, ["grid-rest"])]
    assert names == ["calibrations", "curves", "repairs-of-grid", "grid-rest"]


def test_a_part_of_a_step_has_the_record_and_what_sizes_its_plan():
    code, math = ("demo-code",), (MATH,)
    fields = {"granularity": "neuron", "neuron_scope": "global"}
    budget = [{"remove": 9}, {"remove": 8}]
    cut = plans_by(("heapr",), (code,), budget, **fields)
    whole = plans_by(("reap", "ean"), (code,), budget)
    order = Order("evaluate", "evaluations", (*whole, *cut), (*code, *math))
    (wanted, *_) = whole
    part = order.narrowed({Key("evaluations", wanted.about, MATH)})
    # The first plan of neurons decides by which calibration all plans of a request are sized.
    assert part == replace(order, plans=(wanted, cut[0]), corpora=math)
    assert order.narrowed({Key("evaluations", "other", MATH)}) is None
    runs = {key.corpus for key in parts_of(RANDOM[:1])}
    assert runs == {MATH}


def parts_of(keys):
    return {key for part in narrowed(STEPS, set(keys)) for key in [*part.keys()]}


def test_a_searched_plan_needs_its_search_and_that_its_calibration():
    searched = next(
        key for step in STEPS for key in [*step.keys()] if key.about.endswith("searched")
    )
    kinds = [step.name for step in narrowed(STEPS, {searched})]
    assert kinds == ["calibrations", "search-ean", "compared"]
    assert {key.corpus for key in parts_of([searched]) if key.kind == "runs"} == {"demo-code"}


@pytest.mark.slow
def test_steps_are_rebuilt_to_the_rounding_of_the_machine(built):
    for step in built.steps:
        others = shipped([step])
        records = made(step, built.work.stats)
        assert {record.key for record in records} == {*step.keys()}
        for record in records:
            (other,) = others[record.key]
            assert (record.name, record.raw["digest"]) == (other.name, other.raw["digest"])
            assert record.raw.get("plan") == other.raw.get("plan")
            # Another machine adds in another order; an expert may then be chosen for another.
            numbers = [
                difference
                for difference in differences(record, other)
                if difference.share < math.inf
            ]
            assert max((number.share for number in numbers), default=0) < 1e-2


@pytest.mark.slow
def test_nothing_that_ships_can_be_seen_from_a_work_folder(built):
    words = "import analysis.files.shipped as s; print(s.SHIPPED_STATS.exists(), s.__file__)"
    said = subprocess.run(
        [sys.executable, "-c", words],
        cwd=built.work.tree,
        env=worker_environment(built.work.tree),
        capture_output=True,
        text=True,
        check=True,
    )
    exists, file = said.stdout.split()
    assert exists == "False"
    assert Path(file).is_relative_to(built.work.tree)


@pytest.mark.parametrize("variable", [SHIPPED_VARIABLE, "XDG_CACHE_HOME"])
def test_no_variable_shows_a_step_other_statistics(work, tmp_path, monkeypatch, variable):
    folder = tmp_path / APP_NAME / CACHED
    (run,) = (ROOT / CACHED).glob("demo-demo-math-*")
    shutil.copytree(run, folder / "run")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "empty"))  # no run of another test
    monkeypatch.setenv(variable, str(folder if variable == SHIPPED_VARIABLE else tmp_path))
    words = "from analysis.stats.store import stats_store; print(len(stats_store().runs()))"
    tree = work.tree
    for environment, runs in ((os.environ, 1), (worker_environment(tree), 0)):
        command = [sys.executable, "-c", words]
        said = subprocess.check_output(
            command, cwd=tree, env=environment | {"PYTHONPATH": str(tree)}
        )
        assert int(said) == runs


@pytest.mark.slow
def test_a_killed_step_goes_on_and_a_finished_one_is_not_made_again(killed, built):
    _, first = killed
    compared = built.steps[-1]
    assert built.is_done(compared)
    assert len(made(compared, built.work.stats)) == len(RANDOM) > len(first) > 0
    assert first == {path: path.stat().st_mtime_ns for path in first}
    before = built.work.mark(compared).stat().st_mtime_ns
    built.run()
    assert built.work.mark(compared).stat().st_mtime_ns == before
    # Made from another model or other texts, it is no longer what was asked for.
    assert not replace(built, inputs="others", _digests={}).is_done(compared)


@pytest.mark.slow
def test_a_changed_step_finds_none_of_its_rows_again(built, tmp_path):
    work = Work(tmp_path)
    work.prepare()
    shutil.rmtree(work.stats)
    shutil.copytree(built.work.stats, work.stats)
    compared = built.steps[-1]
    first, second = (record.whole.blocks([record.name]) for record in made(compared, work.stats))
    own = {block.plan for block in (*first, *second)} - {ORIGINAL}
    assert len(own) == len(RANDOM)
    # A killed process has left a row of which no record speaks, and a part of another.
    shard = Measurements([work.stats]).shards[0]
    left = replace(first[0], plan="left").to_line()
    shard.write_bytes(shard.read_bytes() + left + left[:-9])
    work.begin(compared, "digest")
    assert plans_in(work.stats) == {*own, ORIGINAL, "left"}  # nothing has changed
    work.begin(compared, "another digest")
    assert made(compared, work.stats) == []
    assert plans_in(work.stats) == set()


@pytest.mark.slow
def test_rows_that_other_records_read_stay(built, tmp_path):
    stats = tmp_path / "stats"
    shutil.copytree(built.work.stats, stats)
    one, other = made(built.steps[-1], stats)
    forget(stats, [one.path])
    one.path.unlink()
    (stays,) = {block.plan for block in other.whole.blocks([other.name])} - {ORIGINAL}
    assert plans_in(stats) == {stays, ORIGINAL}
    (again,) = made(built.steps[-1], stats)
    assert differences(again, other) == []


def plans_in(stats):
    shards = [path.read_bytes() for path in Measurements([stats]).shards]
    lines = [line for shard in shards for line in shard.splitlines(keepends=True)]
    return {Block.from_line(line).plan for line in lines if line.endswith(b"\n")}


def test_a_step_that_fails_says_so_and_is_not_done(tmp_path):
    work = Work(tmp_path)
    work.prepare()
    key = Key("evaluations", plans_by(("reap",), ((MATH,),), [{"sparsity": "50%"}])[0].about, MATH)
    (step,) = [part for part in narrowed(STEPS, {key}) if part.kind == "evaluations"]
    build = Build(work, (step,), "inputs", frozenset({key}))
    with pytest.raises(UserError, match="The step compared failed: There are no calib"):
        build.run()  # without its calibration
    assert not build.is_done(step)


@pytest.mark.slow
def test_all_that_ships_is_replaced_or_nothing(built, tmp_path):
    old = tmp_path / CACHED / "evaluations" / "demo.jsonl"
    paper = tmp_path / CACHED / "published" / "table.csv"
    for path in (old, paper):
        path.parent.mkdir(parents=True)
        path.write_text("as it was")
    unmade = Step("unmade", (Order("weights", WEIGHTS),), CACHED)
    with pytest.raises(UserError, match="unmade must be made first"):
        ship(replace(built, steps=(*built.steps, unmade)), tmp_path)
    assert old.read_text() == "as it was"
    (old.parent / "other.jsonl").write_text("{}")
    assert ship(built, tmp_path) == [tmp_path / CACHED]
    assert paper.read_text() == "as it was"
    written = {path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()}
    names = {"demo.jsonl", "demo-evaluations.jsonl", "manifest.json", "weights.parquet"}
    assert {path.name for path in written} >= names
    assert not (old.parent / "other.jsonl").exists()
    # What was shipped is what a person's program reads.
    for step in built.steps:
        again = shipped([step], tmp_path)
        for record in made(step, built.work.stats):
            assert differences(record, *again[record.key]) == []
    # Of the table, the rows of these records: two plans, and the original model once.
    lines = (tmp_path / CACHED / FOLDER / "demo-evaluations.jsonl").read_bytes().splitlines(True)
    blocks = [Block.from_line(line) for line in lines]
    assert [block.plan for block in blocks].count(ORIGINAL) == 1
    assert len(blocks) == 1 + len(RANDOM)
    (shard, *_) = EvaluationStore([tmp_path / CACHED]).table.shards
    shard.unlink()
    with pytest.raises(StatsError, match=r"has no numbers of .* in the table"):
        differences(record, *shipped([step], tmp_path)[record.key])


@pytest.mark.slow
def test_a_number_of_the_table_is_compared_to_its_last_digit(built, tmp_path):
    stats = tmp_path / "stats"
    shutil.copytree(built.work.stats, stats)
    compared = built.steps[-1]
    before = made(compared, stats)[0]
    assert differences(before, made(compared, built.work.stats)[0]) == []
    record = Whole(stats, "evaluations").records[before.name]
    for path in Measurements([stats]).shards:
        blocks = [Block.from_line(line) for line in path.read_bytes().splitlines(keepends=True)]
        for block in blocks:
            if block.plan == record.plan_digest:
                sums = block.sums["nll"].sums
                sums[0] = np.nextafter(sums[0], np.inf)
        path.write_bytes(b"".join(block.to_line() for block in blocks))
    (after,) = [entry for entry in made(compared, stats) if entry.name == before.name]
    assert {difference.name for difference in differences(before, after)} >= {
        f"sums.{record.plan_digest}.nll"
    }


@pytest.mark.slow
def test_a_check_names_what_differs(built, tmp_path):
    root = tmp_path / "root"
    shutil.copytree(ROOT / CACHED, root / CACHED)
    fresh = STEPS[-1]
    for step in STEPS:
        if step.ships and not step.ships.startswith(CACHED):
            fresh = step
            (root / step.ships).parent.mkdir(parents=True)
            shutil.copy(ROOT / step.ships, root / step.ships)
    assert not fresh.ships.startswith(CACHED)
    (weights,) = (root / CACHED).glob("demo-weights-*/manifest.json")
    (rebuilt,) = built.work.stats.glob("demo-weights-*/manifest.json")
    raw = json.loads(weights.read_text())
    raw["settings"]["dtype"], raw["made"]["created_at"] = "F32", "another day"
    shutil.copy(rebuilt.with_name("weights.parquet"), weights.with_name("weights.parquet"))
    weights.write_text(json.dumps(raw))
    (record,) = chosen([weights.parent.name], 0, root)
    work = Work(tmp_path / "work")
    work.prepare()
    (outcome,) = check([record], work)
    assert outcome.differs == (Difference("settings.dtype"),)
    assert chosen(["30"], 1, root) == chosen(["30"], 1, root) != chosen(["30"], 2, root)
    with pytest.raises(UserError, match=r"No shipped record is called demo-weight\b"):
        chosen(["demo-weight"], 0, root)
    assert [step.name for step in parts_for([record])] == ["weights"]


def test_a_difference_says_which_number_and_how_large():
    record = Stored(Key("bins"), "", Path("a.json"), {"rows": [1.0, 2.0], "made": "today", "n": 1})
    other = replace(record, raw={"rows": [1.0, 2.5], "made": "yesterday", "n": 2, "more": None})
    # (2.5 - 2) / 2.5
    expected = [Difference("rows", 0.2), Difference("n"), Difference("more")]
    assert differences(record, other) == expected
    assert differences(record, replace(record, raw={**record.raw, "made": ""})) == []
    assert str(Difference("rows", 2e-7)) == "rows by 2e-07"


def test_the_summary_says_how_far_and_what_lets_it_pass():
    record = Stored(Key("bins"), "", Path("a.json"), {})
    same, near = (
        Outcome(record, ()),
        Outcome(record, (Difference("a", 5e-5), Difference("b", 1e-7))),
    )
    may = "; dates, seconds and versions may differ"
    hint = "; processors round in different ways: --within 1e-04 lets that pass"
    start = "2 records rebuilt, "
    assert summary([same, same]) == f"{start}none of them other than what ships{may}"
    assert summary([same, near]) == (
        f"{start}1 of them other than what ships by at most 5e-05{may}{hint}"
    )
    far = Outcome(record, (Difference("a", 2e-3),))
    assert summary([far, near]) == f"{start}2 of them other than what ships by at most 2e-03{may}"
    lacking = Outcome(record, (Difference("n"),))
    assert summary([lacking, near]) == f"{start}2 of them other than what ships{may}"


@pytest.mark.slow
def test_an_empty_folder_gives_the_same_digits_again(forks, tmp_path, built):
    records = [record for step in built.steps for record in made(step, built.work.stats)]
    work = Work(tmp_path)
    work.prepare()
    build, keys = Build(work, TINY, "", built.keys), tmp_path / "keys.json"
    keys.write_text(json.dumps(sorted(built.keys)))
    for step in TINY:  # as `Build.run` does, in processes that have the libraries at hand
        words = ("-m", "tools.demo.worker", tmp_path, step.name, build.digest(step), keys)
        environment = worker_environment(work.tree)
        ended = forks.run(*words, folder=work.tree, environment=environment)
        assert build.is_done(step), ended
    again = {record.key: record for step in TINY for record in made(step, work.stats)}
    assert [differences(record, again[record.key]) for record in records] == [[]] * len(records)


def test_the_command_needs_a_process(tmp_path):
    words = ["-m", "tools.demo", "--work", tmp_path, "--processes", "0", "--only", "weights"]
    said = subprocess.run(
        [sys.executable, *words], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert (said.returncode, said.stderr) == (1, "error: --processes: give 1 or more (got 0).\n")


@pytest.mark.slow
def test_the_command_says_which_records_are_others(tmp_path):
    (record,) = (entry for entry in chosen(["9999"], 0) if entry.key == RANDOM[0])
    words = ["-m", "tools.demo", "--work", tmp_path, "--check", record.name]
    said = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True)
    assert "1 record rebuilt" in said.stdout, said.stdout + said.stderr
    assert said.returncode == int("none of them" not in said.stdout)
    assert not list(tmp_path.iterdir())
