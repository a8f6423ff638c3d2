"""Memory that weights are read into, layer after layer.

Memory that a process did not have before costs the system more than what is read into it: each page
is found, cleared and given. So what a layer leaves goes to the next one, and comes in large pages.
"""

import mmap
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from weakref import finalize

import numpy as np
import torch
from torch import Tensor

_LEAST = 1 << 18  # bytes; smaller tensors are left to the heap
_LARGE_PAGE = 1 << 21  # bytes
_TAKEN = 1 << 26  # bytes between two steps, while memory is taken


class WeightMemory:
    """Gives memory for tensors on the CPU; that of tensors that are gone is given again.

    Memory comes back only once nothing refers to it, so no two tensors ever share it. Only what is
    expected to be asked for is kept; the rest returns to the system at once.
    """

    def __init__(self) -> None:
        self._expected: Counter[int] = Counter()  # bytes -> how many will be asked for
        self._unused: defaultdict[int, list[mmap.mmap]] = defaultdict(list)

    def expect(self, sizes: Iterable[int] = ()) -> None:
        """Keep memory for tensors of these bytes, and no other."""
        self._expected = Counter(sizes)
        for nbytes, unused in self._unused.items():
            del unused[self._expected[nbytes] :]

    def take(self, sizes: Iterable[int]) -> Iterator[int]:
        """Take memory for tensors of these bytes, which are expected, as far as it is not there.

        Yields the bytes taken since it last did.
        """
        for nbytes, count in Counter(size for size in sizes if size >= _LEAST).items():
            unused = self._unused[nbytes]
            for _ in range(len(unused), count):
                unused.append(memory := _new(nbytes))
                for start in range(0, nbytes, _TAKEN):
                    some = np.frombuffer(memory, np.uint8)[start : start + _TAKEN]
                    some[:: mmap.PAGESIZE] = 0  # the system gives a page when it is written to
                    yield len(some)

    def empty(self, nbytes: int) -> Tensor:
        """So many bytes, of any values."""
        if nbytes < _LEAST:
            return torch.empty(nbytes, dtype=torch.uint8)
        if self._expected[nbytes]:
            self._expected[nbytes] -= 1
        unused = self._unused[nbytes]
        memory = unused.pop() if unused else _new(nbytes)
        array = np.frombuffer(memory, np.uint8)
        # A tensor and all its views hold the array; it goes with the last of them.
        finalize(array, self._take_back, memory).atexit = False
        return torch.from_numpy(array)

    def _take_back(self, memory: mmap.mmap) -> None:
        unused = self._unused[len(memory)]
        if self._expected[len(memory)] > len(unused):
            unused.append(memory)


def _new(nbytes: int) -> mmap.mmap:
    try:
        memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"no memory for a tensor of {nbytes} bytes") from error
    if nbytes >= _LARGE_PAGE and hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # advice, which kernels without large pages refuse
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
