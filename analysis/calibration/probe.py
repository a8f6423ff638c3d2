"""How fast this machine multiplies, reads and hashes, in about a second: before its first run.

A run tells more, see `analysis.stats.rates`. Rates are seconds for a unit of cost.
"""

import errno
import hashlib
import mmap
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from io import FileIO
from typing import TYPE_CHECKING, Any, NamedTuple

from analysis.calibration.free import free_memory
from analysis.model.moe_model import MoEModel
from analysis.model.widths import computed_widths
from analysis.progress import RATES

if TYPE_CHECKING:
    import torch

_SECONDS = 0.25  # of each measurement
_TOKENS = 1024  # of a batch, of which an expert gets its share
_WEIGHT_BYTES = 64 << 20  # of experts: more than caches hold
LARGEST = 1 << 24  # elements of a matrix: the widest experts are cut
_WIDEST = 1024  # of a matrix that is inverted
_PRODUCTS = 1 << 31  # multiply-adds at a time, unless so many are fewer than these tokens have
_FEWEST_ROWS = 16
_NEW_BYTES = 128 << 20
# Bytes read at a time, and from how many places: to load; and to see how fast the disk is, which
# takes twice as long for a byte if the system can read less ahead.
_CHUNK, _CHUNKS = 4 << 20, 16
_RUN, _RUNS = 64 << 20, 8
_GOLDEN = (5**0.5 - 1) / 2  # multiples of it, without whole numbers, are spread evenly
# Of the speed of products of this shape, what a forward reaches with attention and routing: the
# middle of models of several shapes and dtypes.
_FORWARD = 0.6


def multiply_rate(model: MoEModel, dtype: str = "auto", device: str = "auto") -> float:
    """Of `multiply`, by products as wide as experts with the tokens of a batch."""
    import torch
    from torch.nn.functional import linear

    from analysis.calibration.loading import DTYPES, resolve_device, resolve_dtype

    layer = max(model.layers, key=lambda layer: layer.num_experts)
    hidden = model.hidden_size
    widest = max(max(widths) for widths in computed_widths(model).values())
    width = min(widest, LARGEST // hidden)
    one = 3 * width * hidden
    share = max(1, _TOKENS * layer.top_k // layer.num_experts)
    rows = min(share, max(_FEWEST_ROWS, _PRODUCTS // one))
    on = resolve_device(device)
    place: dict[str, Any] = {"dtype": DTYPES[resolve_dtype(dtype, model)], "device": on}
    tokens, shape = torch.ones(rows, hidden, **place), (2 * width, hidden)
    count = max(1, min(layer.num_experts, _WEIGHT_BYTES // (one * tokens.itemsize)))
    # Weights are (out, in), as in a model.
    experts = [
        (torch.ones(shape, **place), torch.ones(hidden, width, **place)) for _ in range(count)
    ]

    def run(number: int) -> torch.Tensor:
        into, out = experts[number % count]
        return linear(linear(tokens, into)[:, :width], out)

    return RATES["multiply"] * fastest_seconds(run, on) / (rows * one * _FORWARD)


def invert_rate(model: MoEModel, device: str = "auto") -> float:
    """Of `invert`, by a matrix as wide as experts, which is inverted as in `pruning.repair.solver`.

    The widest are cut.
    """
    import torch

    from analysis.calibration.loading import resolve_device

    widest = max(max(widths) for widths in computed_widths(model).values())
    width, on = min(widest, _WIDEST), resolve_device(device)
    gram = torch.eye(width, device=on)

    def run(_: int) -> torch.Tensor:
        return torch.cholesky_inverse(torch.linalg.cholesky(gram.double()).to(gram))

    return RATES["invert"] * fastest_seconds(run, on) / width**3


def fastest_seconds(run: "Callable[[int], torch.Tensor]", on: "torch.device") -> float:
    """Seconds of the fastest of numbered runs, without the CPU time of other programs.

    Of the result of a run one value is read.
    """
    import torch

    clock = time.thread_time if on.type == "cpu" else time.perf_counter
    with torch.no_grad():
        float(run(0).flatten()[0])  # kernels start up; reading a value waits for the device
        started, took = time.perf_counter(), list[float]()
        while time.perf_counter() - started < _SECONDS:
            before = clock()
            float(run(len(took)).flatten()[0])
            took.append(clock() - before)
    # The clock of a thread may stand still for some microseconds.
    return min((seconds for seconds in took if seconds > 0), default=_SECONDS / len(took))


class ByteSeconds(NamedTuple):
    """Seconds for a byte of the shards."""

    read: float  # as far as the disk decides them, if its page stays in the cache
    dropped: float  # the same, if it leaves the cache at once, as in a run by layers
    hashed: float  # that is read and hashed


def byte_seconds(model: MoEModel) -> ByteSeconds:
    """Seconds for a byte of the shards."""
    cached, fresh, hashing = list[float](), list[float](), list[float]()
    there = _memory(_RUN)
    started = before = time.perf_counter()
    for part, was_cached in _parts(model, there, _RUNS):
        taken = cached if was_cached else fresh
        taken.append((time.perf_counter() - before) / len(part))
        read = time.thread_time()
        hashlib.sha256(part).digest()
        hashing.append((time.thread_time() - read) / len(part))
        before = time.perf_counter()
        if before - started > _SECONDS:
            break
    fits = model.checkpoint.nbytes <= free_memory()
    reading, dropped = (reading_seconds(cached, fresh, fits=one) for one in (fits, True))
    return ByteSeconds(reading, dropped, reading + min(hashing))


def reading_seconds(cached: Sequence[float], fresh: Sequence[float], *, fits: bool) -> float:
    """Seconds for a byte of a model, by those of parts that the page cache had and had not.

    The fastest of those cached count, as other programs may take the CPU in between, and the median
    of the others: a disk is fast and slow by turns. Where pages stay of a model that memory does
    not hold, what is cached is gone before a run gets there: unless it `fits`.
    """
    if not fresh:
        return min(cached)
    share = len(cached) / (len(cached) + len(fresh)) if fits else 0.0
    from_disk = (1 - share) * statistics.median(fresh)
    return share * min(cached, default=0.0) + from_disk


def allocating_seconds() -> float:
    """Seconds of the CPU for a byte of memory that a process did not have, as for weights."""
    from analysis.calibration.weight_memory import WeightMemory

    before = time.thread_time()
    taken = sum(WeightMemory().take([_NEW_BYTES]))
    return (time.thread_time() - before) / taken


def loading_seconds(model: MoEModel, dtype: str = "auto", *, anew: bool = True) -> float:
    """Seconds of the CPU for a byte of the shards to be read, and to become a weight.

    In new memory, or in that of the part before. The median: some parts may get memory that was
    freed, which is ten times as fast.
    """
    import torch

    from analysis.calibration.loading import DTYPES, resolve_dtype

    stored, loaded = DTYPES[resolve_dtype("auto", model)], DTYPES[resolve_dtype(dtype, model)]
    weights, took = list[torch.Tensor](), list[float]()
    there = torch.zeros(0 if anew else _CHUNK // stored.itemsize, dtype=loaded)
    before = time.thread_time()
    for part, _ in _parts(model, _memory(_CHUNK), _CHUNKS):
        whole = len(part) - len(part) % stored.itemsize
        read = torch.frombuffer(part[:whole], dtype=stored)
        if anew:
            weights.append(read.to(loaded, copy=True))  # kept: the next ones take more memory
        else:
            there[: len(read)].copy_(read)
        took.append((time.thread_time() - before) / whole)
        before = time.thread_time()
    return statistics.median(took)


def _parts(model: MoEModel, there: memoryview, places: int) -> Iterator[tuple[memoryview, bool]]:
    """Some bytes of the shards, from places all over them; whether the page cache had them.

    Each part is `there` until the next.
    """
    shards = model.checkpoint.shards
    chunks = -(-places // len(shards))
    every = [(shard, number * shard.size // chunks) for shard in shards for number in range(chunks)]
    # The first of them lie all over the model too, as time may end before the last.
    for number in sorted(range(len(every)), key=lambda number: number * _GOLDEN % 1):
        shard, start = every[number]
        with (model.checkpoint.path / shard.name).open("rb", buffering=0) as file:
            yield read_part(file, start, there)


def _memory(length: int) -> memoryview:
    """Memory that the system has given already: each page was written to."""
    there = bytearray(length)
    there[:: mmap.PAGESIZE] = bytes(-(-length // mmap.PAGESIZE))
    return memoryview(there)


def read_part(file: FileIO, start: int, there: memoryview) -> tuple[memoryview, bool]:
    """Fill memory from a file, less at its end or of a slow disk; whether the page cache had it.

    Of what was not there, nothing is afterwards: the next probe finds the same.
    """
    had, filled = _from_cache(file, start, there), 0
    if had == len(there):
        return there, True
    file.seek(start)
    before = time.perf_counter()
    while count := file.readinto(there[filled : filled + _CHUNK]):
        filled += count
        if time.perf_counter() - before > _SECONDS:
            break
    if had is None:
        return there[:filled], False
    if (brought := filled - had) > 0:  # 0 would drop the rest of the file
        os.posix_fadvise(file.fileno(), start + had, brought, os.POSIX_FADV_DONTNEED)
    return there[:filled], brought <= 0


def _from_cache(file: FileIO, start: int, there: memoryview) -> int | None:
    """How many bytes of memory the page cache could fill from a file; None where it cannot tell."""
    if not hasattr(os, "RWF_NOWAIT"):  # not Linux
        return None
    try:
        return os.preadv(file.fileno(), [there], start, os.RWF_NOWAIT)
    except OSError as error:  # other numbers: no such file system
        return 0 if error.errno == errno.EAGAIN else None
