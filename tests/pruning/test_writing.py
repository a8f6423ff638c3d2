"""Shards as they are written, and the byte ranges and gathers that they are made of."""

import errno
import hashlib
import itertools
import os
import struct
import sys
import time
import tracemalloc
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from analysis.checkpoint.index import TensorEntry
from analysis.drain import drain
from analysis.errors import ExportError
from pruning.surgery import writing
from pruning.surgery.pieces import Gather, Span, item_bytes, read_into
from pruning.surgery.shards import PlannedShard, PlannedTensor, ShardReading, assemble
from pruning.surgery.writing import write_file, write_shards


def shard_of(path, name, pieces):
    """A shard of one tensor of bytes that consists of pieces of a source file."""
    nbytes = sum(piece.nbytes for piece in pieces)
    entry = TensorEntry("x", path.name, "U8", (path.stat().st_size,), 0, path.stat().st_size)
    return assemble(name, [PlannedTensor(entry, "x", (nbytes,), tuple(pieces), "U8")], {})


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "source"
    path.write_bytes(np.random.default_rng(5).bytes(5000))
    return path


@pytest.fixture
def target(tmp_path):
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


@pytest.mark.parametrize("most", [5000, 130])  # the system may write less than it is given
def test_no_write_crosses_the_end_of_a_large_page(source, target, monkeypatch, most):
    places = []
    write = os.write
    monkeypatch.setattr(writing, "_BUFFER_BYTES", 1500)
    monkeypatch.setattr(writing, "_WRITTEN_BYTES", 1000)

    def written(file, content):
        start = os.lseek(file, 0, os.SEEK_CUR)
        count = write(file, content[:most])
        places.append((start, start + len(content)))
        return count

    monkeypatch.setattr(writing.os, "write", written)
    shard = shard_of(source, "a", [Span(100, 4900)])
    drain(write_shards([shard], source.parent, target))
    assert (target / "a").read_bytes() == shard.prefix + source.read_bytes()[100:4900]
    assert all(start // 1000 == (end - 1) // 1000 for start, end in places)
    # The header, the ends of four blocks, and each end of a page on the way.
    assert most < 5000 or len(places) == 1 + 4 + (len(shard.prefix) + 4800) // 1000


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


def test_what_is_done_is_on_the_disk_and_little_is_copied_ahead_of_it(source, target, monkeypatch):
    """A flush takes longer than all copying: 2,000 bytes and a buffer are copied ahead of it."""
    monkeypatch.setattr(writing, "_BUFFER_BYTES", 100)
    monkeypatch.setattr(writing, "_FLUSH_BYTES", 1000)
    monkeypatch.setattr(writing, "_AHEAD_BYTES", 2000)
    monkeypatch.setattr(writing, "_POLL_SECONDS", 0.001)
    flushed, steps = [0], []

    def flush(_):
        time.sleep(0.02)  # a slow disk
        flushed.append((target / "a").stat().st_size)

    monkeypatch.setattr(writing, "_flush", flush)
    shard = shard_of(source, "a", [Span(0, 5000)])
    drain(write_shards([shard], source.parent, target), lambda step: steps.append(step.done))
    ahead = [later - before for before, later in pairwise(flushed)]
    assert len(ahead) >= 2
    assert max(ahead) <= 2000 + 1000 + 100
    assert steps[0] == 0
    assert max(done for done in steps if done < shard.nbytes) <= flushed[-1]
    assert steps[-1] == shard.nbytes


def test_a_flush_that_fails_while_others_succeed_ends_the_export(source, target, monkeypatch):
    """The system tells an error once: later flushes of the same file succeed."""
    monkeypatch.setattr(writing, "_BUFFER_BYTES", 100)
    monkeypatch.setattr(writing, "_FLUSH_BYTES", 1000)
    append, failing = writing._append, [OSError(errno.EIO, "Input/output error")]

    def slowly(*given):
        append(*given)
        time.sleep(0.002)  # so that each flush ends before the next one

    def flush(_):
        if failing:
            raise failing.pop()

    monkeypatch.setattr(writing, "_append", slowly)
    monkeypatch.setattr(writing, "_flush", flush)
    shard = shard_of(source, "a", [Span(0, 5000)])
    with pytest.raises(ExportError, match="Writing a failed: Input/output error"):
        drain(write_shards([shard], source.parent, target))


def test_the_next_shard_is_written_while_one_waits_for_the_disk(source, target, monkeypatch):
    monkeypatch.setattr(writing.os, "cpu_count", lambda: 1)  # one thread copies
    shards = [shard_of(source, name, [Span(0, 5000)]) for name in ("a", "b")]
    sync, seen = os.fsync, []

    def wait_for_both(file):
        deadline = time.monotonic() + 30
        while not (target / "b").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        seen.append((target / "b").exists())
        sync(file)

    monkeypatch.setattr("os.fsync", wait_for_both)
    drain(write_shards(shards, source.parent, target))
    assert seen == [True, True]


def test_an_error_of_the_disk_names_the_shard(source, target, monkeypatch):
    def refuse(_):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("os.fsync", refuse)
    with pytest.raises(ExportError, match="Writing a failed: Input/output error"):
        drain(write_shards([shard_of(source, "a", [Span(0, 9)])], source.parent, target))


def test_few_shards_wait_for_the_disk(source, target, monkeypatch):
    monkeypatch.setattr(writing.os, "cpu_count", lambda: 1)  # one thread copies
    sync, unsynced, ended = os.fsync, [], []

    def slowly(file):
        time.sleep(0.05)
        unsynced.append(len(list(target.iterdir())) - len(ended))
        sync(file)
        ended.append(file)

    monkeypatch.setattr("os.fsync", slowly)
    shards = [shard_of(source, str(number), [Span(0, 5000)]) for number in range(6)]
    records = drain(write_shards(shards, source.parent, target))
    assert [record.name for record in records] == [shard.name for shard in shards]
    # One is copied while one waits.
    assert max(unsynced) == 2


def shared_by(answer, places):
    """The kernel's call that shares blocks: copies, or refuses with an error number."""

    def ioctl(target, request, argument):
        source, start, nbytes, end = struct.unpack("=qQQQ", argument)
        assert request == 0x4020940D
        places.append((start, end))
        if answer:
            raise OSError(answer, os.strerror(answer))
        os.pwrite(target, os.pread(source, nbytes, start), end)

    return ioctl


@pytest.mark.skipif(sys.platform != "linux", reason="blocks are shared by a call of Linux")
@pytest.mark.parametrize("answer", [0, errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL])
def test_blocks_are_shared_where_they_can_begin_alike(source, target, monkeypatch, answer):
    places = []
    monkeypatch.setattr(writing.fcntl, "ioctl", shared_by(answer, places))
    monkeypatch.setattr(writing, "_BUFFER_BYTES", 4096)
    whole = PlannedShard("whole", b"", (ShardReading("source", (Span(0, 5000),)),), (), 0, 0)
    header = b"x" * 24
    apart = replace(whole, name="apart", prefix=header)
    records = drain(write_shards([whole, apart], source.parent, target))
    assert places == [(0, 0), (4096, 4096)]
    for shard, record in zip((whole, apart), records, strict=True):
        written = (target / shard.name).read_bytes()
        assert written == shard.prefix + source.read_bytes()
        assert record.sha256 == hashlib.sha256(written).hexdigest()


@pytest.mark.skipif(sys.platform != "linux", reason="blocks are shared by a call of Linux")
def test_a_disk_that_fails_to_share_is_named(source, target, monkeypatch):
    monkeypatch.setattr(writing.fcntl, "ioctl", shared_by(errno.EIO, []))
    whole = PlannedShard("whole", b"", (ShardReading("source", (Span(0, 5000),)),), (), 0, 0)
    with pytest.raises(ExportError, match="Writing whole failed: Input/output error"):
        drain(write_shards([whole], source.parent, target))


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


BEFORE = 13  # bytes of something else
COUNT = 7
# Runs, single entries, an order of its own, zeros at the start, in the middle, and at the end.
INDICES = (
    *([0, 1, 2, 3, 4, 5, 6], [2, 3, 4], [6], [5, 1, 0, 6, 3], [1, 1, 2]),
    *([-1, 0, 2, -1, -1, 3, 4, -1], [0, -1], [-1, 1, -1, 2], [3, -1, 0, 1], [-1, -1]),
)
SIZES = (1, 2, 3, 4, 6, 8, 12, 511, 512, 515)
LIMITS = (1, 3, 7, 8, 14, 20, 21, 50, 1200, 9000)


@pytest.fixture
def file(tmp_path):
    """An open file with enough random bytes, after a few others."""
    path = tmp_path / "source"
    path.write_bytes(np.random.default_rng(0).bytes(BEFORE + 5 * COUNT * 600))
    number = os.open(path, os.O_RDONLY)
    yield number
    os.close(number)


def wanted(file, gather):
    """What a gather must give: one entry after the other."""
    result = b""
    for row, entry in itertools.product(range(gather.rows), gather.index.tolist()):
        at = gather.start + (row * gather.count + entry) * gather.size
        result += bytes(gather.size) if entry < 0 else os.pread(file, gather.size, at)
    return result


def read(file, gather):
    target = bytearray(b"\xff" * gather.nbytes)
    gather.read(file, memoryview(target), "source")
    return bytes(target)


@pytest.mark.parametrize("index", [*INDICES, []], ids=str)
@pytest.mark.parametrize("rows", [1, 2, 5])
def test_a_gather_and_its_parts_are_plain_indexing(file, rows, index):
    for size in SIZES:
        gather = Gather(BEFORE, rows, COUNT, size, np.array(index, np.int32))
        expected = wanted(file, gather)
        assert gather.nbytes == rows * len(index) * size
        assert not index or read(file, gather) == expected
        for limit in LIMITS:
            parts = list(gather.parts(limit))
            assert b"".join(read(file, part) for part in parts) == expected
            assert all(0 < part.nbytes <= max(limit, size) for part in parts)


def test_as_many_rows_as_fit_are_one_part():
    gather = Gather(0, 5, COUNT, 2, np.array([0, 3, 4], np.int32))
    # A row takes 7 * 2 bytes to read; 3 * 2 come out of it.
    assert [part.rows for part in gather.parts(14)] == [1, 1, 1, 1, 1]
    assert [part.rows for part in gather.parts(28)] == [2, 2, 1]
    assert [part.start for part in gather.parts(41)] == [0, 28, 56]
    assert [part.rows for part in gather.parts(1000)] == [5]
    two = Gather(0, 2, COUNT, 2, np.array([0, 3, 4], np.int32))
    assert [part.rows for part in two.parts(1000)] == [2]
    # Filled up, it gives more than it takes: 9 * 2 bytes a row.
    filled = Gather(0, 5, COUNT, 2, np.full(9, -1, np.int32))
    assert [part.rows for part in filled.parts(36)] == [2, 2, 1]
    # Rows that do not fit are cut into as many entries as do.
    assert [len(part.index) for part in gather.parts(4)] == [2, 1] * 5


def test_long_entries_are_read_without_what_lies_between(file, monkeypatch):
    taken = []
    pread = os.preadv
    monkeypatch.setattr(
        os, "preadv", lambda *words: taken.append((words[2], len(words[1][0]))) or pread(*words)
    )
    read(file, Gather(BEFORE, 1, COUNT, 512, np.array([0, 1, 5, -1, 3], np.int32)))
    # Neighbours in one go; 0..1, 5, 3.
    assert taken == [(BEFORE, 1024), (BEFORE + 5 * 512, 512), (BEFORE + 3 * 512, 512)]
    taken.clear()
    read(file, Gather(BEFORE, 1, COUNT, 511, np.array([0, 5], np.int32)))
    read(file, Gather(BEFORE, 2, COUNT, 512, np.array([0, 5], np.int32)))
    assert taken == [(BEFORE, COUNT * 511), (BEFORE, 2 * COUNT * 512)]


def test_an_expert_without_neurons_is_filled_up_with_zeros(file):
    gather = Gather(BEFORE, 3, 0, 4, np.array([-1, -1], np.int32))
    assert read(file, gather) == bytes(3 * 2 * 4)
    assert [part.nbytes for part in gather.parts(8)] == [8, 8, 8]


def test_a_short_answer_of_the_system_is_continued(file, monkeypatch):
    pread = os.preadv
    monkeypatch.setattr(
        os, "preadv", lambda number, buffers, at: pread(number, [buffers[0][:5]], at)
    )
    target = bytearray(23)
    read_into(file, memoryview(target), BEFORE, "source")
    assert bytes(target) == os.pread(file, 23, BEFORE)


def test_a_source_that_ends_too_soon_is_named(tmp_path):
    path = tmp_path / "source"
    path.write_bytes(bytes(10))
    with path.open("rb") as file, pytest.raises(ExportError, match="source's model-1 became short"):
        read_into(file.fileno(), memoryview(bytearray(8)), 3, "model-1")


@pytest.mark.parametrize(
    ("dtype", "size"),
    [("F32", 4), ("BF16", 2), ("F8_E4M3", 1), ("U8", 1), ("I64", 8), ("F64", 8), ("I128", 16)],
)
def test_bytes_of_an_element(dtype, size):
    assert item_bytes(dtype) == size


@pytest.mark.parametrize("dtype", ["BOOL", "F4", "F6_E2M3"])
def test_an_element_type_that_is_not_whole_bytes_is_refused(dtype):
    with pytest.raises(ExportError, match=f"of type {dtype}"):
        item_bytes(dtype)
