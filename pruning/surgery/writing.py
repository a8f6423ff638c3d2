"""Writes files: a few threads copy, hash and flush bytes.

Every byte is read once into a buffer, and hashed while it is copied. Memory does not depend on the
size of the model: each shard being written has at most two buffers. A shard whose bytes are written
waits for the disk while the next one is copied; few wait at a time.
"""

import errno
import fcntl
import hashlib
import os
import struct
import sys
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import BoundedSemaphore, Event
from typing import Any

from analysis.errors import ExportError
from analysis.files.durable import sync_file
from analysis.progress import Progress
from pruning.surgery.manifest import FileRecord, ShardRecord, file_record
from pruning.surgery.pieces import Piece, Span
from pruning.surgery.shards import PlannedShard

_BUFFER_BYTES = 1 << 22
_FLUSH_BYTES = 1 << 25  # start flushing after so many bytes, so that little is left at the end
_AHEAD_BYTES = 1 << 29  # of a shard, copied and not on the disk, about: what the disk has is done
_MAX_WORKERS = 4
_SHARDS_PER_WORKER = 2  # one is copied, one waits for the disk
_POLL_SECONDS = 0.1
# At a time: for more, Linux takes larger pages of memory, which may have to be made first.
# Pages lie at multiples of their size, so writes end there too.
_WRITTEN_BYTES = 1 << 17
_SHARED_BYTES = 1 << 12  # blocks that file systems can share begin at multiples of it
_flush = getattr(os, "fdatasync", os.fsync)  # macOS has no fdatasync
# FICLONERANGE of linux/fs.h: file, start and bytes of the source, start in the target.
_CLONE_RANGE, _CLONED = 0x4020940D, struct.Struct("=qQQQ")
# Errors by which the kernel says that two files cannot share blocks.
_CANNOT_SHARE = {errno.EXDEV, errno.EINVAL, errno.ENOTTY, errno.ENOSYS, errno.EOPNOTSUPP}
_CANNOT_SHARE |= {errno.EPERM, errno.ETXTBSY}


# The SHA-256 of a shard, and a flush that may still run.
_Copied = tuple[str, Future[None] | None]


class _Cancelled(Exception):
    """The export was stopped; only worker threads see this."""


@dataclass(eq=False)
class _Work:
    source: Path
    target: Path
    hashers: ThreadPoolExecutor  # threads that hash, in addition to those that copy
    hash_aside: bool  # only useful with spare cores
    syncers: ThreadPoolExecutor  # threads that wait for the disk
    places: BoundedSemaphore  # of shards that are copied or wait for the disk
    # That are on the disk. Keys are set at the start, and one thread at a time updates its own.
    bytes_by_shard: dict[str, int]
    stop: Event = field(default_factory=Event)


def write_file(path: Path, content: bytes) -> FileRecord:
    """Write and sync a small file; creates its folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    sync_file(path)
    return file_record(content)


def _append(source: int, target: int, block: Sequence[Piece], content: memoryview) -> None:
    """Append a block to the target: what its file system cannot share is written from memory.

    `content` is the bytes of the block, which were read to be hashed.
    """
    match block:
        case [Span() as span] if _is_shared(source, target, span):
            os.lseek(target, span.nbytes, os.SEEK_CUR)
        case _:
            _write_all(target, content)


def _is_shared(source: int, target: int, span: Span) -> bool:
    """Share the blocks of a span of the source from the target's position on, if that is possible.

    Unlike `copy_file_range`, this never reads the bytes again where they cannot be shared.
    """
    end = os.lseek(target, 0, os.SEEK_CUR)
    if sys.platform != "linux" or end % _SHARED_BYTES or span.start % _SHARED_BYTES:
        return False
    try:
        fcntl.ioctl(target, _CLONE_RANGE, _CLONED.pack(source, span.start, span.nbytes, end))
    except OSError as error:
        if error.errno in _CANNOT_SHARE:
            return False
        raise
    return True


def _write_all(file: int, content: memoryview) -> None:
    """Write from the file's position on, up to the end of a large page each time.

    For bytes on both sides of such a place the kernel takes many small pages instead of one.
    """
    position = os.lseek(file, 0, os.SEEK_CUR)
    while content:
        room = _WRITTEN_BYTES - position % _WRITTEN_BYTES
        count = os.write(file, content[:room])
        content, position = content[count:], position + count


def _blocks_of(planned: PlannedShard, folder: Path) -> Iterator[tuple[int, str, list[Piece]]]:
    """Open file and name of a shard of the source, or a repair's, and its blocks, file by file.

    Blocks fit a buffer: small pieces share one, large ones are split.
    """
    for reading in planned.readings:
        with ((reading.folder or folder) / reading.source).open("rb", buffering=0) as source:
            block: list[Piece] = []
            room = _BUFFER_BYTES
            for part in (part for piece in reading.pieces for part in piece.parts(_BUFFER_BYTES)):
                if part.nbytes > room:
                    yield source.fileno(), reading.source, block
                    block, room = [], _BUFFER_BYTES
                block.append(part)
                room -= part.nbytes
            if block:
                yield source.fileno(), reading.source, block


def _copy(planned: PlannedShard, target: int, work: _Work) -> _Copied:
    """Write one shard to an open file; its SHA-256, and a flush that may still run."""
    sha = hashlib.sha256(planned.prefix)
    _write_all(target, memoryview(planned.prefix))
    count = 2 if work.hash_aside else 1
    buffers = [memoryview(bytearray(min(_BUFFER_BYTES, planned.nbytes))) for _ in range(count)]
    hashing: Future[None] | None = None
    flushing: Future[None] | None = None
    copied, unflushed = len(planned.prefix), 0
    for number, (source, name, block) in enumerate(_blocks_of(planned, work.source)):
        if work.stop.is_set():
            raise _Cancelled
        # With two, fills one buffer while the other is still being hashed.
        content = buffers[number % count][: sum(span.nbytes for span in block)]
        filled = 0
        for span in block:
            span.read(source, content[filled : filled + span.nbytes], name)
            filled += span.nbytes
        if hashing:
            hashing.result()
        if work.hash_aside:
            hashing = work.hashers.submit(sha.update, content)
        else:
            sha.update(content)
        _append(source, target, block, content)
        copied += len(content)
        unflushed += len(content)
        is_far_ahead = copied - work.bytes_by_shard[planned.name] >= _AHEAD_BYTES
        if unflushed >= _FLUSH_BYTES and (flushing is None or flushing.done() or is_far_ahead):
            if flushing:
                flushing.result()  # the system reports an error once only
            flushing = work.syncers.submit(_flush_so_far, target, planned.name, copied, work)
            unflushed = 0
    if hashing:
        hashing.result()
    return sha.hexdigest(), flushing


def _flush_so_far(target: int, name: str, copied: int, work: _Work) -> None:
    """Flush an open file, of which so many bytes are copied."""
    _flush(target)
    work.bytes_by_shard[name] = copied


@contextmanager
def _naming(shard: str) -> Iterator[None]:
    """Says of which shard an error of the system is."""
    try:
        yield
    except OSError as error:
        raise ExportError(
            f"Writing {shard} failed: {error.strerror or error}; the unfinished export was removed."
        ) from error


def _write_shard(planned: PlannedShard, work: _Work) -> Future[ShardRecord]:
    """Write a shard; its record is there once it is synced, while the next shard is written."""
    with _naming(planned.name), ExitStack() as stack:
        work.places.acquire()
        stack.callback(work.places.release)
        target = stack.enter_context((work.target / planned.name).open("xb", buffering=0))
        copied = _copy(planned, target.fileno(), work)
        taken = stack.pop_all()
    return work.syncers.submit(_synced, planned, copied, target.fileno(), taken, work)


def _synced(
    planned: PlannedShard,
    copied: _Copied,
    target: int,
    taken: ExitStack,  # its file and its place
    work: _Work,
) -> ShardRecord:
    digest, flushing = copied
    with _naming(planned.name), taken:
        if flushing:
            flushing.result()
        os.fsync(target)
        work.bytes_by_shard[planned.name] = planned.nbytes
    return ShardRecord(
        name=planned.name,
        bytes=planned.nbytes,
        sha256=digest,
        tensors=tuple(tensor.name for tensor in planned.tensors),
        copied=len(planned.tensors) - planned.cut - planned.repaired - planned.dequantised,
        cut=planned.cut,
        dropped=planned.dropped,
        repaired=planned.repaired,
        dequantised=planned.dequantised,
    )


def write_shards(
    shards: Sequence[PlannedShard], source: Path, target: Path
) -> Generator[Progress, None, tuple[ShardRecord, ...]]:
    """Write all shards from folder to folder, several at once, and sync each.

    However this ends, by an error or because the caller stops, no thread keeps running. `target`
    holds none of these files yet.
    """
    total = sum(shard.nbytes for shard in shards)
    cores = os.cpu_count() or 1
    workers = max(1, min(len(shards), cores, _MAX_WORKERS))
    with (
        ThreadPoolExecutor(workers, "export-hash") as hashers,
        ThreadPoolExecutor(_SHARDS_PER_WORKER * workers, "export-sync") as syncers,
        ThreadPoolExecutor(workers, "export-copy") as pool,
    ):
        bytes_by_shard = dict.fromkeys((shard.name for shard in shards), 0)
        places = BoundedSemaphore(_SHARDS_PER_WORKER * workers)
        work = _Work(source, target, hashers, workers < cores, syncers, places, bytes_by_shard)
        # Large shards first, so that the threads end together.
        order = sorted(shards, key=lambda shard: -shard.nbytes)
        copies = {shard.name: pool.submit(_write_shard, shard, work) for shard in order}
        try:
            pending: set[Future[Any]] = set(copies.values())
            while pending:
                yield Progress("writing", sum(work.bytes_by_shard.values()), total, "bytes")
                done, pending = wait(pending, _POLL_SECONDS, FIRST_EXCEPTION)
                ended = [future.result() for future in done]
                pending |= {syncing for syncing in ended if isinstance(syncing, Future)}
        finally:
            work.stop.set()
            pool.shutdown(cancel_futures=True)
    yield Progress("writing", total, total, "bytes")
    return tuple(copies[shard.name].result().result() for shard in shards)
