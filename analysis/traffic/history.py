"""History: recognises the beginning of a prompt that an earlier request held already.

A chat sends its history again with each turn, and servers keep what they computed of it. Memory
stays flat: a table of fixed size holds a hash of every beginning, newer ones replacing older.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Hashes = NDArray[np.uint64]
_SLOTS = 1 << 21  # 16 MiB; the beginnings of about the last two million tokens
_ODD = np.array([0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93], dtype=np.uint64)


def _mixed(values: Hashes) -> Hashes:
    """A bijection that spreads every bit over all others (splitmix64's last steps)."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        values = (values ^ (values >> np.uint64(shift))) * np.uint64(factor)
    return values ^ (values >> np.uint64(31))


def _powers(base: np.uint64, count: int) -> Hashes:
    """1, b, b^2 ... modulo 2^64."""
    factors = np.full(count, base, dtype=np.uint64)
    factors[:1] = 1
    return np.multiply.accumulate(factors)


def row_hashes(rows: NDArray[np.integer[Any]]) -> Hashes:
    """A hash of each row of a table of numbers."""
    if not len(rows):
        return np.zeros(0, dtype=np.uint64)
    flat = _mixed(rows.reshape(len(rows), -1).astype(np.uint64))
    return _mixed(flat @ _powers(_ODD[1], flat.shape[1]))


def prefix_hashes(rows: Hashes) -> Hashes:
    """A hash of each beginning of a sequence: entry i is that of rows 0 to i."""
    sums = np.add.accumulate(rows * _powers(_ODD[0], len(rows)))
    return np.maximum(_mixed(sums), np.uint64(1))  # 0 is an empty slot


class History:
    """The beginnings of the requests so far."""

    def __init__(self, slots: int = _SLOTS) -> None:
        self._slots = np.zeros(slots, dtype=np.uint64)

    def repeated(self, prefixes: Hashes) -> range:
        """The rows that earlier requests with the same beginning had.

        All from the first known to the last: some between may have been replaced.
        """
        known = np.flatnonzero(self._slots[prefixes % np.uint64(len(self._slots))] == prefixes)
        return range(int(known[0]), int(known[-1]) + 1) if len(known) else range(0)

    def add(self, prefixes: Hashes) -> None:
        """Remember the beginnings of a request, those that end in a row that was counted."""
        self._slots[prefixes % np.uint64(len(self._slots))] = prefixes
