"""How documents become sequences: joined end to end, packed side by side, or one a row."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from analysis.arrays import BoolArray
from analysis.corpora.encoding import Tokens
from analysis.corpora.sequences import TokenIds

Packing = Literal["auto", "concatenate", "pack", "pad"]
Truncate = Literal["head", "tail", "drop"]
_OPEN_ROWS = 16


@dataclass(frozen=True, slots=True)
class Limits:
    """What sequences may hold.

    Args:
        tokens: of all sequences together, at most.
        seq_len: of one sequence, at most, unless `whole`.
        truncate: which end of a longer document is kept, or that it is dropped.
        whole: a longer document is a sequence by itself, uncut.
    """

    tokens: int
    seq_len: int
    truncate: Truncate = "head"
    whole: bool = False


@dataclass(slots=True)
class TokenRows:
    """Sequences, and an account of every token that was read: fed or dropped.

    Args:
        rows, counted: for each sequence its ids, and which enter the sums.
        positions: for each sequence every token's place in its document; empty where a sequence
            is one text.
        num_read: tokens read.
        num_documents, num_dropped_documents: that were fed at least in part, and not at all.
        num_too_much: tokens of the document that ended the reading, because they were more than
            was left; 0 where none did.
    """

    rows: list[TokenIds] = field(default_factory=list)
    counted: list[BoolArray] = field(default_factory=list)
    positions: list[TokenIds] = field(default_factory=list)
    num_read: int = 0
    num_documents: int = 0
    num_dropped_documents: int = 0
    num_too_much: int = 0

    @property
    def num_fed(self) -> int:
        """Tokens in the sequences."""
        return sum(map(len, self.rows))

    @property
    def num_dropped(self) -> int:
        """Tokens read that are in no sequence."""
        return self.num_read - self.num_fed

    def add(self, parts: Sequence[Tokens]) -> None:
        """One more sequence."""
        self.rows.append(np.concatenate([part.ids for part in parts]))
        self.counted.append(np.concatenate([_counted(part) for part in parts]))


def _counted(item: Tokens) -> BoolArray:
    return np.ones(len(item.ids), dtype=np.bool_) if item.counted is None else item.counted


def concatenate(documents: Iterator[Tokens], limits: Limits) -> TokenRows:
    """Documents joined end to end and cut into sequences of equal length.

    A document sees what stands before it in its sequence, as in pre-training and in HEAPr.
    """
    packed = TokenRows()
    wanted = limits.tokens // limits.seq_len * limits.seq_len
    items: list[Tokens] = []
    for item in documents:
        items.append(item)
        packed.num_read += len(item.ids)
        packed.num_documents += 1
        if packed.num_read >= wanted:
            break
    length = min(wanted, packed.num_read // limits.seq_len * limits.seq_len)
    if length:
        stream = Tokens(
            np.concatenate([item.ids for item in items]),
            np.concatenate([_counted(item) for item in items]),
        )
        for start in range(0, length, limits.seq_len):
            packed.add([stream.part(start, start + limits.seq_len)])
    return packed


def _fitting(documents: Iterator[Tokens], limits: Limits, packed: TokenRows) -> Iterator[Tokens]:
    """Documents cut to the length of a sequence, or whole, until the tokens are spent."""
    fed = 0
    for item in documents:
        size = len(item.ids)
        packed.num_read += size
        keep = size if limits.whole else min(size, limits.seq_len)
        if size == 0 or (size > keep and limits.truncate == "drop"):
            packed.num_dropped_documents += 1
            continue
        if fed + keep > limits.tokens:
            packed.num_dropped_documents += 1
            packed.num_too_much = keep
            return
        fed += keep
        packed.num_documents += 1
        yield item.part(size - keep, size) if limits.truncate == "tail" else item.part(0, keep)


def pad(documents: Iterator[Tokens], limits: Limits) -> TokenRows:
    """One document a sequence; batches pad the shorter ones."""
    packed = TokenRows()
    for item in _fitting(documents, limits, packed):
        packed.add([item])
    return packed


def pack(documents: Iterator[Tokens], limits: Limits) -> TokenRows:
    """Whole documents side by side in a sequence, where they do not see each other.

    Each goes into the first of at most sixteen open sequences that has room for it; where none
    has, the fullest is closed. No document is split; one that is longer than a sequence, and is to
    stay whole, has one to itself.
    """
    packed = TokenRows()
    rows: list[list[Tokens]] = []
    for item in _fitting(documents, limits, packed):
        place = next((row for row in rows if _size(row) + len(item.ids) <= limits.seq_len), None)
        if place is None:
            if len(rows) == _OPEN_ROWS:
                fullest = max(range(_OPEN_ROWS), key=lambda number: _size(rows[number]))
                _close(packed, rows.pop(fullest))
            rows.append(place := [])
        place.append(item)
    for row in rows:
        _close(packed, row)
    return packed


def _size(row: Sequence[Tokens]) -> int:
    return sum(len(item.ids) for item in row)


def _close(packed: TokenRows, row: Sequence[Tokens]) -> None:
    packed.add(row)
    places = [np.arange(len(item.ids), dtype=np.int32) for item in row]
    packed.positions.append(np.concatenate(places))


PACKERS: Mapping[Packing, Callable[[Iterator[Tokens], Limits], TokenRows]] = {
    "concatenate": concatenate,
    "pack": pack,
    "pad": pad,
}
