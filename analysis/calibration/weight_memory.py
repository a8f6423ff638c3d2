"""Memory that weights are read into, layer after layer.

Memory that a process did not have before costs the system more than what is read into it: each page
is found, cleared and given. So what a layer leaves goes to the next one, of whichever model. Pages
are small: large ones cost a fifth where they are at hand, and five times as much where the system
must make room for them.
"""

import mmap
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from weakref import finalize

import numpy as np
import torch
from torch import Tensor

_LEAST = 1 << 18  # bytes; smaller tensors are left to the heap
_TAKEN = 1 << 26  # bytes between two steps, while memory is taken


class WeightMemory:
    """Gives memory for tensors on the CPU; that of tensors that are gone is given again.

    Memory comes back only once nothing refers to it, so no two tensors ever share it. Only what is
    expected to be asked for is kept; the rest returns to the system at once.
    """

    def __init__(self, most: int = 1) -> None:
        """A tensor may have memory of up to `most` times its bytes; 1: of as many."""
        self._most = most
        self._expected: Counter[int] = Counter()  # bytes -> how many will be asked for
        self._unused: list[mmap.mmap] = []

    def expect(self, sizes: Iterable[int] = ()) -> None:
        """Keep memory for tensors of these bytes, and no other; the first ones get the largest."""
        self._expected = Counter(size for size in sizes if size >= _LEAST)
        self._unused = [memory for _, memory in self._matched()]

    def take(self, sizes: Iterable[int]) -> Iterator[int]:
        """Take memory for tensors of these bytes, which are expected, as far as it is not there.

        Yields the bytes taken since it last did.
        """
        there = Counter(size for size, _ in self._matched())
        lacking = Counter(size for size in sizes if size >= _LEAST) - there
        for nbytes in lacking.elements():
            self._unused.append(memory := _new(nbytes))
            for start in range(0, nbytes, _TAKEN):
                some = np.frombuffer(memory, np.uint8)[start : start + _TAKEN]
                some[:: mmap.PAGESIZE] = 0  # the system gives a page when it is written to
                yield len(some)

    def empty(self, nbytes: int) -> Tensor:
        """So many bytes, of any values."""
        if nbytes < _LEAST:
            return torch.empty(nbytes, dtype=torch.uint8)
        memory = next((there for size, there in self._matched() if size == nbytes), None)
        if self._expected[nbytes]:
            self._expected[nbytes] -= 1
        if memory is None:
            memory = _new(nbytes)
        else:
            self._unused = [other for other in self._unused if other is not memory]
        array = np.frombuffer(memory, np.uint8, nbytes)
        # A tensor and all its views hold the array; it goes with the last of them.
        finalize(array, self._take_back, memory).atexit = False
        return torch.from_numpy(array)

    def _take_back(self, memory: mmap.mmap) -> None:
        self._unused.append(memory)
        self._unused = [other for _, other in self._matched()]

    def _matched(self) -> Iterator[tuple[int, mmap.mmap]]:
        """The sizes expected that there is memory for, each with the largest it may have."""
        unused = sorted(self._unused, key=len)
        for size, count in self._expected.items():
            for _ in range(count):
                place = bisect_right(unused, size * self._most, key=len) - 1
                if place < 0 or len(unused[place]) < size:
                    break
                yield size, unused.pop(place)


def bytes_to_take(layers: Iterable[Iterable[int]]) -> int:
    """Bytes that layers of tensors of these sizes take, each in the memory of the one before."""
    taken, there = 0, Counter[int]()
    for sizes in layers:
        needed = Counter(size for size in sizes if size >= _LEAST)
        taken += sum((needed - there).elements())
        there = needed
    return taken


def _new(nbytes: int) -> mmap.mmap:
    try:
        return mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"no memory for a tensor of {nbytes} bytes") from error
