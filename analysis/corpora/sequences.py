"""Token sequences of a corpus: their batches and their digest."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.corpora.tokens import TokenIds
from analysis.numbers.arrays import BoolArray, IntArray

TOKEN_SHARDS = 8  # equal parts of a corpus, to show how results change with more tokens


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """Sequences padded on the right to a common length."""

    input_ids: IntArray  # (sequences, length) int64; 0 where padded
    mask: BoolArray  # (sequences, length) bool; False where padded
    counted: BoolArray  # (sequences, length) bool; True where a token enters the sums
    token_shard: IntArray  # (sequences, length) int64; shard of each counted token, else 0
    # (sequences, length) int64, restarting at 0 with each packed document; None if not packed.
    positions: IntArray | None = None
    first: int = 0  # number of the first sequence among all


@dataclass(frozen=True, eq=False)
class TokenSequences:
    """The token sequences of one corpus, as they are fed to the model."""

    corpus: str  # its name, see `analysis.corpora.spec.corpus_name`
    rows: tuple[TokenIds, ...]  # one int32 array per sequence, without padding
    num_documents: int  # documents that contributed at least one token
    num_dropped: int  # tokens read but left out: cut off, or too many for the last sequence
    counted: tuple[BoolArray, ...] | None = None  # which tokens enter the sums; None: all
    # Each token's place in its packed document; None if documents are not packed.
    positions: tuple[TokenIds, ...] | None = None
    num_dropped_documents: int = 0  # documents read but not fed at all
    # The document of each row, numbered as drawn: that of most of its tokens, the first of equals.
    # None if unknown, as for rows of one joined text. Not part of the digest.
    documents: tuple[int, ...] | None = None
    prepared: Mapping[str, Any] = field(default_factory=dict)  # for the manifest; plain JSON
    path: str = ""  # folder and name of its file, for the manifest

    def __post_init__(self) -> None:
        for values in (self.counted, self.positions, self.documents):
            if values is not None and len(values) != len(self.rows):
                raise ValueError(f"{len(values)} rows are described of {len(self.rows)}")

    @property
    def num_tokens(self) -> int:
        """Tokens without padding."""
        return sum(len(row) for row in self.rows)

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence."""
        return max(map(len, self.rows), default=0)

    @property
    def num_counted(self) -> int:
        """Tokens that enter the sums."""
        return sum(int(self._counted(number).sum()) for number in range(len(self.rows)))

    def _counted(self, number: int) -> BoolArray:
        if self.counted is None:
            return np.ones(len(self.rows[number]), dtype=np.bool_)
        return self.counted[number]

    def picked(self, rows: Sequence[int] | IntArray) -> "TokenSequences":
        """Some of the rows, with all that is known of each."""

        def of(values: tuple[Any, ...] | None) -> tuple[Any, ...] | None:
            return None if values is None else tuple(values[number] for number in rows)

        return replace(
            self,
            rows=of(self.rows) or (),
            counted=of(self.counted),
            positions=of(self.positions),
            documents=of(self.documents),
        )

    @property
    def digest(self) -> str:
        """SHA-256 of the ids, of the sequences' lengths, and of `counted` and `positions` if set.

        64 hex digits.
        """
        sha = hashlib.sha256()
        for row in self.rows:
            sha.update(len(row).to_bytes(8, "little"))
            sha.update(row.astype("<i4").tobytes())
        if self.counted is not None:
            sha.update(b"counted")
            for counted in self.counted:
                sha.update(counted.astype("u1").tobytes())
        if self.positions is not None:
            sha.update(b"positions")
            for positions in self.positions:
                sha.update(positions.astype("<i4").tobytes())
        return sha.hexdigest()

    def batches(self, batch_size: int, *, start: int = 0) -> Iterator[TokenBatch]:
        """Batches in a fixed order, from row `start` on; the last may be smaller."""
        total = self.num_counted
        before = sum(int(self._counted(number).sum()) for number in range(start))
        for first in range(start, len(self.rows), batch_size):
            numbers = range(first, min(first + batch_size, len(self.rows)))
            mask = _padded([np.ones(len(self.rows[n]), dtype=np.bool_) for n in numbers])
            counted = _padded([self._counted(number) for number in numbers])
            place = before + np.cumsum(counted).reshape(counted.shape) - 1
            before += int(counted.sum())
            yield TokenBatch(
                input_ids=_padded([self.rows[number] for number in numbers]).astype(np.int64),
                mask=mask,
                counted=counted,
                token_shard=np.where(counted, place * TOKEN_SHARDS // max(total, 1), 0),
                positions=None
                if self.positions is None
                else _padded([self.positions[number] for number in numbers]).astype(np.int64),
                first=first,
            )

    def num_padded(self, batch_size: int) -> int:
        """Padding positions in batches of this size."""
        starts = range(0, len(self.rows), batch_size)
        groups = (self.rows[start : start + batch_size] for start in starts)
        return sum(max(map(len, group)) * len(group) - sum(map(len, group)) for group in groups)


def _padded(rows: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """(rows, longest): zeros on the right of shorter rows."""
    array = np.zeros((len(rows), max(len(row) for row in rows)), dtype=rows[0].dtype)
    for position, row in enumerate(rows):
        array[position, : len(row)] = row
    return array
