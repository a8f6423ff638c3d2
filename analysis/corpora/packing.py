"""How much of a corpus is used, and how its documents become sequences."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from analysis.arrays import BoolArray
from analysis.corpora.encoding import Count, Tokens
from analysis.corpora.sequences import TokenIds
from analysis.errors import CorpusError

Packing = Literal["auto", "concatenate", "pack", "pad"]
Truncate = Literal["head", "tail", "drop"]
_OPEN_ROWS = 16


@dataclass(frozen=True, slots=True)
class Sampling:
    """How much of a corpus is used, and how it is cut into sequences."""

    tokens: int  # tokens wanted; the run takes whole sequences, the last that fits included
    seq_len: int  # tokens in a sequence
    seed: int = 42  # of the order in which documents are drawn
    # "concatenate" joins documents end to end, "pack" sets them side by side where they do not see
    # each other, "pad" gives each a sequence of its own; "auto" joins text and keeps rows of token
    # ids as they are.
    packing: Packing = "auto"
    truncate: Truncate = "head"  # which end of a document longer than a sequence is kept, or "drop"
    count: Count = "all"  # "all" tokens enter the sums, or those of the "response" only
    # Rows of token ids that are not joined are used whole, however long; `seq_len` and `truncate`
    # then cut text only.
    whole: bool = False

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise CorpusError(f"The seed {self.seed} is negative; use a whole number from 0.")
        if self.seq_len < 2:
            raise CorpusError(f"A sequence of {self.seq_len} tokens is too short; use at least 2.")
        if self.packing == "concatenate":
            check_joins(self)


def check_joins(sampling: Sampling) -> None:
    """Refuse what cannot be done with joined documents."""
    if sampling.truncate != "head":
        raise CorpusError(
            f"Joined documents are not truncated, so there is no {sampling.truncate!r}; use "
            "--packing pad or pack."
        )
    # Documents that are not joined may be shorter than a sequence, so they may fit all the same.
    if sampling.tokens < sampling.seq_len:
        raise CorpusError(
            f"{sampling.tokens} tokens are less than one sequence of {sampling.seq_len}; "
            f"ask for at least {sampling.seq_len} tokens or a shorter sequence length."
        )


@dataclass(slots=True)
class TokenRows:
    """Sequences, and an account of every token that was read: fed or dropped."""

    # For each sequence its ids, and which enter the sums.
    rows: list[TokenIds] = field(default_factory=list)
    counted: list[BoolArray] = field(default_factory=list)
    # For each sequence every token's place in its document; empty where a sequence is one text.
    positions: list[TokenIds] = field(default_factory=list)
    num_read: int = 0  # tokens read
    # Documents that were fed at least in part, and not at all.
    num_documents: int = 0
    num_dropped_documents: int = 0
    # Tokens of the document that ended the reading, because they were more than was left; 0 where
    # none did.
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


def concatenate(documents: Iterator[Tokens], sampling: Sampling) -> TokenRows:
    """Documents joined end to end and cut into sequences of equal length.

    A document sees what stands before it in its sequence, as in pre-training and in HEAPr.
    """
    packed = TokenRows()
    wanted = sampling.tokens // sampling.seq_len * sampling.seq_len
    items: list[Tokens] = []
    for item in documents:
        items.append(item)
        packed.num_read += len(item.ids)
        packed.num_documents += 1
        if packed.num_read >= wanted:
            break
    length = min(wanted, packed.num_read // sampling.seq_len * sampling.seq_len)
    if length:
        stream = Tokens(
            np.concatenate([item.ids for item in items]),
            np.concatenate([_counted(item) for item in items]),
        )
        for start in range(0, length, sampling.seq_len):
            packed.add([stream.part(start, start + sampling.seq_len)])
    return packed


def _fitting(
    documents: Iterator[Tokens], sampling: Sampling, packed: TokenRows
) -> Iterator[Tokens]:
    """Documents cut to the length of a sequence, or whole, until the tokens are spent."""
    fed = 0
    for item in documents:
        size = len(item.ids)
        packed.num_read += size
        keep = size if sampling.whole else min(size, sampling.seq_len)
        if size == 0 or (size > keep and sampling.truncate == "drop"):
            packed.num_dropped_documents += 1
            continue
        if fed + keep > sampling.tokens:
            packed.num_dropped_documents += 1
            packed.num_too_much = keep
            return
        fed += keep
        packed.num_documents += 1
        yield item.part(size - keep, size) if sampling.truncate == "tail" else item.part(0, keep)


def pad(documents: Iterator[Tokens], sampling: Sampling) -> TokenRows:
    """One document a sequence; batches pad the shorter ones."""
    packed = TokenRows()
    for item in _fitting(documents, sampling, packed):
        packed.add([item])
    return packed


def pack(documents: Iterator[Tokens], sampling: Sampling) -> TokenRows:
    """Whole documents side by side in a sequence, where they do not see each other.

    Each goes into the first of at most sixteen open sequences that has room for it; where none
    has, the fullest is closed. No document is split; one that is longer than a sequence, and is to
    stay whole, has one to itself.
    """
    packed = TokenRows()
    rows: list[list[Tokens]] = []
    for item in _fitting(documents, sampling, packed):
        place = next((row for row in rows if _size(row) + len(item.ids) <= sampling.seq_len), None)
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


PACKERS: Mapping[Packing, Callable[[Iterator[Tokens], Sampling], TokenRows]] = {
    "concatenate": concatenate,
    "pack": pack,
    "pad": pad,
}
