"""Shards as they are written: their bytes and records, flushed on the way, in little memory."""

import hashlib
import tracemalloc

import numpy as np
import pytest

from analysis.checkpoint import TensorEntry
from analysis.drain import drain
from pruning.surgery import writing
from pruning.surgery.pieces import Gather, Span
from pruning.surgery.shards import PlannedTensor, assemble
from pruning.surgery.writing import write_file, write_shards


def shard_of(path, name, pieces):
    """A shard of one tensor of bytes that consists of pieces of a source file."""
    nbytes = sum(piece.nbytes for piece in pieces)
    entry = TensorEntry("x", path.name, "U8", (path.stat().st_size,), 0, path.stat().st_size)
    return assemble(name, [PlannedTensor(entry, "x", (nbytes,), tuple(pieces))], {})


@pytest.fixture
def source(tmp_path):
    """A file of random bytes."""
    path = tmp_path / "source"
    path.write_bytes(np.random.default_rng(5).bytes(5000))
    return path


@pytest.fixture
def target(tmp_path):
    """An empty folder."""
    (tmp_path / "target").mkdir()
    return tmp_path / "target"


@pytest.mark.parametrize("cores", [1, 64])
@pytest.mark.parametrize("buffer", [1 << 22, 100, 7])
def test_bytes_and_records_whatever_the_buffer(source, target, monkeypatch, buffer, cores):
    monkeypatch.setattr(writing, "_BUFFER_BYTES", buffer)
    monkeypatch.setattr(writing, "_FLUSH_BYTES", 3 * buffer)
    # With cores to spare hashing has threads of its own.
    monkeypatch.setattr(writing.os, "cpu_count", lambda: cores)
    content = source.read_bytes()
    columns = Gather(40, 9, 10, 2, np.array([7, -1, 0, 1], np.int32))
    shards = [
        shard_of(source, "a", [Span(3, 3000), columns, Span(17, 18)]),
        shard_of(source, "b", [Span(100, 4999)]),
        shard_of(source, "empty", []),
    ]
    rows = np.frombuffer(content[40:220], np.uint8).reshape(9, 10, 2)
    cut = rows[:, [7, 0, 0, 1]].copy()
    cut[:, 1] = 0
    wanted = {
        "a": content[3:3000] + cut.tobytes() + content[17:18],
        "b": content[100:4999],
        "empty": b"",
    }
    steps = []
    task = write_shards(shards, source.parent, target)
    try:
        while True:
            steps.append(next(task))
    except StopIteration as stop:
        records = stop.value
    assert [record.name for record in records] == ["a", "b", "empty"]
    for shard, record in zip(shards, records, strict=True):
        written = (target / shard.name).read_bytes()
        assert written == shard.prefix + wanted[shard.name]
        assert record.bytes == len(written) == shard.nbytes
        assert record.sha256 == hashlib.sha256(written).hexdigest()
        assert record.tensors == ("x",)
        assert (record.copied, record.cut, record.dropped) == (0, 1, 0)
    total = sum(record.bytes for record in records)
    assert {(step.phase, step.total, step.unit) for step in steps} == {("writing", total, "bytes")}
    assert [step.done for step in steps] == sorted(step.done for step in steps)
    assert (steps[0].done <= total) and steps[-1].done == total


def test_flushing_begins_while_bytes_are_written(source, target, monkeypatch):
    sizes = []
    monkeypatch.setattr(writing, "_BUFFER_BYTES", 100)
    monkeypatch.setattr(writing, "_FLUSH_BYTES", 1000)
    flush = writing._flush

    def flushed(file):
        sizes.append((target / "a").stat().st_size)
        flush(file)

    monkeypatch.setattr(writing, "_flush", flushed)
    shard = shard_of(source, "a", [Span(0, 5000)])
    drain(write_shards([shard], source.parent, target))
    # A flush may be skipped while another runs, so one to five; each after a kilobyte at least.
    assert 1 <= len(sizes) <= 5
    assert sizes[0] >= 1000


def test_memory_does_not_grow_with_a_shard(tmp_path, target):
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(64 << 20)
    gather = Gather(0, 1024, 1 << 14, 2, np.arange(0, 1 << 14, 2, dtype=np.int32))
    shards = [shard_of(path, "a", [Span(0, 64 << 20)]), shard_of(path, "b", [gather])]
    tracemalloc.start()
    records = drain(write_shards(shards, tmp_path, target))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert [record.bytes for record in records] == [shard.nbytes for shard in shards]
    # Two buffers of 4 MiB for each shard, and rows that a gather reads.
    assert peak < 32 << 20


def test_a_small_file_and_its_record(tmp_path):
    record = write_file(tmp_path / "a" / "b" / "name.txt", b"content")
    assert (tmp_path / "a" / "b" / "name.txt").read_bytes() == b"content"
    assert (record.bytes, record.sha256) == (7, hashlib.sha256(b"content").hexdigest())
    write_file(tmp_path / "a" / "b" / "name.txt", b"less")
    assert (tmp_path / "a" / "b" / "name.txt").read_bytes() == b"less"
