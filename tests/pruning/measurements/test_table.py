"""The table of measurements on disk: nothing that was written is lost, and no damage counts."""

import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from analysis.errors import StatsError
from analysis.stats.places import folder_of
from pruning.measurements import shards
from pruning.measurements.block import ORIGINAL, Block, SampleSet
from pruning.measurements.shards import FOLDER
from pruning.measurements.table import Measurements, PlanSums
from pruning.measures.result import SampleSums

WHERE = SampleSet("stories", "5e7", "float32", 42)
# Common to the scripts of other processes: a block by its number.
SCRIPT = """
import sys
from pathlib import Path
import numpy as np
from pruning.measurements.block import Block, SampleSet
from pruning.measurements.table import Measurements
from pruning.measures.result import SampleSums

folder, name = Path(sys.argv[1]), sys.argv[2]
where = SampleSet("stories", "5e7", "float32", 42)

def block(number, size=1):
    values = np.arange(1.0, size + 1) + number
    sums = {"nll": SampleSums(values, np.ones(size, dtype=np.int64))}
    ids = tuple(map(str, range(size)))
    return Block("00ab", f"{name}-{number}", (1,), where, size, ids, sums, {})
"""


def block(plan=ORIGINAL, documents=(4, 4, 7), value=0.1, *, samples=3, least=5e-324):
    """A block with sums that no short decimal number is."""
    counts = np.array([8, 3, 5][:samples], dtype=np.int64)
    nll = np.array([value, 1 / 3, np.nextafter(2.0, 3.0)][:samples])
    kl = np.array([0.0, least, 1e300][:samples])
    of = documents and documents[:samples]
    sums = {"nll": SampleSums(nll, counts, of), "kl": SampleSums(kl, counts, of)}
    ids = ("s1", "s2", "s3")[:samples]
    return Block("00ab", plan, (2, 3), WHERE, 3, ids, sums, {"device": "cpu"})


def facts(row):
    """All that a block says, with the bits of its numbers."""
    sums = {
        name: (one.sums.tobytes(), one.counts.tobytes(), one.documents)
        for name, one in row.sums.items()
    }
    where = (row.where, row.num_samples, row.samples)
    return row.model, row.plan, row.kept, where, sums, row.made


def write(folder, content, name="a.jsonl"):
    path = folder / FOLDER / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def plans_of(folder):
    table = Measurements([folder])
    names = ("first", "second", "third", "other")
    return [name for name in names if known(table, name)], table.problems


def known(table, plan, where=WHERE):
    return table.of_plans("00ab", [plan], where).get(plan)


def python(script, *words):
    command = [sys.executable, "-c", SCRIPT + script, *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True)


@pytest.mark.parametrize("documents", [(4, 4, 7), None])
@pytest.mark.parametrize("samples", [3, 2])
def test_a_block_comes_back_to_the_bit(tmp_path, documents, samples):
    new = block("first", documents, samples=samples)
    Measurements([tmp_path]).add([new])
    (again,) = Measurements([tmp_path]).blocks("00ab", "first", "float32")
    assert facts(again) == facts(new) == facts(Block.from_line(new.to_line()))
    assert again.is_whole == (samples == 3)
    # A part of a set says nothing of the whole, but of its samples.
    table = Measurements([tmp_path])
    assert (known(table, "first") is not None) == again.is_whole
    by_sample = table.by_sample("00ab", "first", "float32", ("nll", "kl"))
    assert by_sample["s2"] == ((1 / 3, 5e-324), 3)
    assert len(by_sample) == samples


def test_no_change_of_a_bit_passes():
    line = block("first", samples=1).to_line()
    body = line.removesuffix(b"\n")
    for place, old in enumerate(body):
        for bit in range(8):
            changed = bytes([old ^ 1 << bit])
            with pytest.raises(ValueError, match="sha256 differs"):
                Block.from_line(body[:place] + changed + body[place + 1 :] + b"\n")


def test_a_changed_line_is_named_and_the_others_are_read(tmp_path):
    first, second, third = (block(plan).to_line() for plan in ("first", "second", "third"))
    for place in range(len(second) - 1):
        folder = tmp_path / str(place)
        changed = second[:place] + bytes([second[place] ^ 1]) + second[place + 1 :]
        write(folder, first + changed + third)
        plans, problems = plans_of(folder)
        assert plans == ["first", "third"]
        (problem,) = map(str, problems)
        assert problem.startswith("Line 2 of the measurements a.jsonl cannot be read (")
        assert "\n" not in problem
        shutil.rmtree(folder)


def test_a_changed_end_of_line_costs_its_two_lines_and_no_other(tmp_path):
    first, second, third = (block(plan).to_line() for plan in ("first", "second", "third"))
    write(tmp_path, first + second[:-1] + b" " + third + block("other").to_line())
    plans, problems = plans_of(tmp_path)
    assert plans == ["first", "other"]
    assert [str(problem)[:7] for problem in problems] == ["Line 2 "]


def test_what_a_kill_cut_short_is_no_line(tmp_path):
    first, second = block("first").to_line(), block("second").to_line()
    write(tmp_path, block("third").to_line(), "b.jsonl")
    for length in range(len(second) + 1):
        write(tmp_path, first + second[:length], f"{length}.jsonl")
        is_whole = length == len(second)
        assert plans_of(tmp_path) == (["first", *["second"] * is_whole, "third"], [])
        (tmp_path / FOLDER / f"{length}.jsonl").unlink()


def test_a_reader_sees_what_is_appended(tmp_path):
    path, reader = write(tmp_path, block("first").to_line()), Measurements([tmp_path])
    assert known(reader, "first")
    with path.open("ab") as file:
        file.write(block("second").to_line())
    write(tmp_path, block("third").to_line(), "b.jsonl")
    assert not known(reader, "second")
    reader.refresh()
    assert known(reader, "second")
    assert known(reader, "third")
    path.unlink()
    reader.refresh()
    assert not known(reader, "first")
    assert known(reader, "third")


def test_two_processes_append_at_once_and_read_each_other(tmp_path):
    script = """
table = Measurements([folder])
print("ready", flush=True)
sys.stdin.readline()
for number in range(50):
    table.add([block(number)], sync=False)
print("done", flush=True)
sys.stdin.readline()
table.refresh()
both = [f"{each}-{number}" for each in "ab" for number in range(50)]
print(len(table.of_plans("00ab", both, where)), len(table.problems))
"""
    writers = [python(script, tmp_path, name) for name in "ab"]
    for expected in ("ready\n", "done\n"):
        assert [writer.stdout.readline() for writer in writers] == [expected] * 2
        for writer in writers:
            writer.stdin.write("go\n")
            writer.stdin.flush()
    assert [writer.communicate()[0] for writer in writers] == ["100 0\n"] * 2
    assert len(Measurements([tmp_path]).shards) == 2


def test_of_equal_rows_the_first_counts(tmp_path):
    mine, shipped = tmp_path / "mine", tmp_path / "shipped"
    write(shipped, block("first", value=4.0).to_line() + block("second", value=4.0).to_line())
    write(mine, block("first", value=2.0).to_line(), "b.jsonl")
    write(mine, block("first", value=1.0).to_line() + block("first", value=3.0).to_line())
    table = Measurements([mine, shipped])

    def value(name):
        return known(table, name).sums["nll"].sums[0]

    assert (value("first"), value("second")) == (1.0, 4.0)
    assert table.by_sample("00ab", "first", "float32", ["nll"])["s1"] == ((1.0,), 8)
    # What is known is not written again, nor what was measured in another way if any will do.
    first = known(table, "first")
    before = [path.read_bytes() for path in table.shards]
    table.add_plans("00ab", {"first": first}, WHERE, {"device": "cpu"})
    table.add_plans("00ab", {"first": first}, WHERE, {"device": "cuda"}, in_any_way=True)
    assert [path.read_bytes() for path in table.shards] == before


def test_what_is_drawn_counts_for_its_seed_alone(tmp_path):
    counts = np.array([8, 3, 5], dtype=np.int64)
    sums = {name: SampleSums(np.array([1.0, 1.0, 1.0]), counts) for name in ("nll", "sap")}
    Measurements([tmp_path]).add([replace(block("first"), sums=sums)])
    table = Measurements([tmp_path])
    assert [*known(table, "first").sums] == ["nll", "sap"]
    assert [*known(table, "first", replace(WHERE, seed=1)).sums] == ["nll"]
    for other in (replace(WHERE, dtype="bfloat16"), replace(WHERE, digest="other")):
        assert known(table, "first", other) is None


def test_a_full_disk_leaves_the_shard_as_it_was(tmp_path):
    script = """
import resource, signal, sys
from analysis.errors import StatsError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
table = Measurements([folder])
table.add([block(0)])
(shard,) = table.shards
before = shard.read_bytes()
sys.dont_write_bytecode = True  # of what is imported from now on
resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 100, len(before) + 100))
try:
    table.add([block(1), block(2)])
except StatsError as error:
    print(error)
assert shard.read_bytes() == before
assert not table.of_plans("00ab", [f"{name}-1", f"{name}-2"], where)
table.refresh()
print(len(table.of_plans("00ab", [f"{name}-{each}" for each in range(3)], where)))
"""
    said = python(script, tmp_path, "a").communicate()[0].splitlines()
    (shard,) = Measurements([tmp_path]).shards
    assert said == [f"Measurements cannot be written to {shard}: File too large.", "1"]


def test_a_folder_that_takes_no_file_is_said_in_one_line(tmp_path):
    folder = folder_of(tmp_path, block().model)
    folder.mkdir(parents=True)
    (folder / FOLDER).write_text("a file")
    with pytest.raises(StatsError, match=r"^Measurements cannot be written to .*: File exists\.$"):
        Measurements([tmp_path]).add([block()])


def test_pandas_reads_a_shard_in_one_line(tmp_path):
    # pandas reads no number that is closer to 0 than normal ones are.
    least = sys.float_info.min
    blocks = [
        block("first", least=least),
        block("second", None, least=least),
        block("third", samples=2, least=least),
    ]
    path = write(tmp_path, b"".join(block.to_line() for block in blocks))
    # Without precise_float pandas is off in the last digit.
    table = (
        pd.read_json(path, lines=True, precise_float=True)
        .explode(["measure", "sum"])
        .explode(["sample", "document", "count", "sum"])
    )
    columns = ["plan", "measure", "sample", "document", "count", "sum"]
    rows = [
        (block.plan, name, *row)
        for block in blocks
        for name, one in block.sums.items()
        for row in zip(
            block.samples,
            one.documents or [None] * len(block.samples),
            one.counts.tolist(),
            one.sums.tolist(),
            strict=True,
        )
    ]
    assert list(table[columns].itertuples(index=False, name=None)) == rows
    assert set(table["corpus"]) == {WHERE.corpus}
    assert set(table["seed"]) == {WHERE.seed}


def test_a_piece_is_claimed_until_its_process_is_gone(tmp_path):
    script = """
import time
with Measurements([folder]).claimed(plan=name, batch=1):
    print("mine", flush=True)
    time.sleep(60)
"""
    refused = """
from filelock import Timeout
table = Measurements([folder])
for batch in (1, 2):
    try:
        with table.claimed(plan=name, batch=batch):
            print("free", flush=True)
    except Timeout:
        print("claimed", flush=True)
"""
    holder = python(script, tmp_path, "a")
    assert holder.stdout.readline() == "mine\n"
    assert python(refused, tmp_path, "a").communicate()[0] == "claimed\nfree\n"
    os.kill(holder.pid, signal.SIGKILL)
    holder.communicate()
    assert python(refused, tmp_path, "a").communicate()[0] == "free\nfree\n"
    assert not list((tmp_path / FOLDER).iterdir())


def test_a_plan_is_compared_with_the_original_of_its_own_machine(tmp_path):
    """The second run measured the original again, as another device gives other bits."""
    table = Measurements([tmp_path])
    for device, value in (("cpu", 1.0), ("cuda", 1.5)):
        plans = {
            plan: PlanSums(
                (2,), ("a",), {"nll": SampleSums(np.array([value + more]), np.array([1]))}
            )
            for plan, more in ((f"by {device}", 1.0), (ORIGINAL, 0.0))
        }
        table.add_plans("00ab", plans, WHERE, {"device": device, "batch_size": 8})
    for device, full in (("cpu", 1.0), ("cuda", 1.5)):
        sums = Measurements([tmp_path]).of_plans("00ab", (f"by {device}", ORIGINAL), WHERE)
        assert [sum_.sums["nll"].sums[0] for sum_ in sums.values()] == [full + 1, full]
    # The same once more adds nothing.
    (shard,) = table.shards
    before = shard.read_bytes()
    table.add_plans("00ab", plans, WHERE, {"device": "cuda", "batch_size": 8})
    assert shard.read_bytes() == before


def test_a_number_that_is_none_is_refused_and_leaves_the_shard(tmp_path):
    table = Measurements([tmp_path])
    table.add([block("first")])
    (shard,) = table.shards
    before = shard.read_bytes()
    with pytest.raises(StatsError, match=r"no finite number.*--dtype bfloat16"):
        table.add([block("second"), block("third", value=float("inf"))])
    assert shard.read_bytes() == before


def test_a_full_shard_is_followed_by_another(tmp_path, monkeypatch):
    table = Measurements([tmp_path])
    monkeypatch.setattr(shards, "MOST_BYTES", 500)
    for name in ("first", "second", "third"):
        table.add([block(name)])
    assert len(table.shards) > 1
    assert plans_of(tmp_path) == (["first", "second", "third"], [])


def test_a_shard_that_could_not_be_read_is_read_once_it_can(tmp_path):
    path = write(tmp_path, block("first").to_line())
    path.rename(path.with_suffix(".moved"))
    path.mkdir()
    table = Measurements([tmp_path])
    assert [str(problem).split(" cannot")[0] for problem in table.problems] == [
        "The measurements a.jsonl"
    ]
    path.rmdir()
    path.with_suffix(".moved").rename(path)
    table.refresh()
    assert (table.problems, known(table, "first").kept) == ([], (2, 3))


@pytest.mark.parametrize(
    ("measure", "sums", "counts", "message"),
    [
        ("esap", [2.0, 3.5], [3, 3], "its esap is 1.16667, which is not in .0, 1."),
        ("esap", [2.0, -0.5], [3, 3], "its esap is -0.1666"),
        ("kl", [2.0, -1.5], [3, 3], "its kl is -0.5"),
        ("nll", [-3.0, 1.0], [3, 3], "its nll is -1, which"),
        ("magic", [-3.0, 1.0], [3, 3], "its magic is -1, which"),
        ("nll", [3.0, 1.0], [3, 0], "a sample has no positions"),
        ("nll", [3.0, 1.0], [3], "not equally many"),
        ("nll", [3.0], [3, 3], "not one sum for each measure and sample"),
    ],
)
def test_a_block_that_cannot_be_is_refused(measure, sums, counts, message):
    values = SampleSums(np.array(sums), np.array(counts))
    made = Block("m", "p", (4, 4), WHERE, 2, ("a", "b"), {measure: values}, {})
    with pytest.raises(ValueError, match=message):
        Block.from_line(made.to_line())
