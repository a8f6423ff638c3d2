"""Near copies: tokens of one text that lie in long runs which another text has as well.

Documents that are held out may repeat what was read: licences, templates, versions of one file. A
model that was pruned by the one looks better on the other than on new text.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from analysis.corpora.tokens import TokenIds, Tokens
from analysis.errors import CorpusError
from analysis.numbers.arrays import BoolArray

# Tokens of a run; longer than idioms and headings, shorter than a licence. A power of two.
RUN = 32
_MIX = np.array([0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53], dtype=np.uint64)  # odd, as in MurmurHash3
_SHIFT = np.uint64(33)


@dataclass(frozen=True, slots=True, eq=False)
class TokenRuns:
    """All runs of `RUN` tokens of some documents, by a hash of 64 bits."""

    hashes: NDArray[np.uint64]  # sorted, each once

    @classmethod
    def of(cls, documents: Iterable[TokenIds]) -> "TokenRuns":
        """The runs inside each document; one of fewer tokens has none."""
        hashes = [_hashes(ids) for ids in documents]
        return cls(np.unique(np.concatenate(hashes)) if hashes else np.zeros(0, np.uint64))

    def covers(self, ids: TokenIds) -> BoolArray:
        """(tokens,) whether each token lies in a run that the documents have."""
        hashes = _hashes(ids)
        places = np.searchsorted(self.hashes, hashes)
        is_known = places < len(self.hashes)
        is_known[is_known] = self.hashes[places[is_known]] == hashes[is_known]
        # A token is in a known run if one begins at it or at one of the RUN - 1 tokens before it.
        begun = np.concatenate([[0], np.cumsum(is_known)])
        places = np.arange(len(ids))
        ends, starts = np.minimum(places + 1, len(hashes)), np.maximum(places + 1 - RUN, 0)
        return np.asarray(begun[ends] > begun[np.minimum(starts, len(hashes))], dtype=np.bool_)


def _hashes(ids: TokenIds) -> NDArray[np.uint64]:
    """(tokens - RUN + 1,) the hash of the run at each place; empty for a shorter document."""
    if len(ids) < RUN:
        return np.zeros(0, dtype=np.uint64)
    hashes, length = _mixed(ids.astype(np.uint64) + np.uint64(1)), 1
    while length < RUN:  # a run of twice the length is a pair of runs
        hashes = _mixed(hashes[:-length] * _MIX[0] + hashes[length:])
        length *= 2
    return hashes


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Each value, its bits mixed."""
    for factor in _MIX:
        values = (values ^ (values >> _SHIFT)) * factor
    return values ^ (values >> _SHIFT)


@dataclass(slots=True)
class NewTokens:
    """Leaves tokens in known runs out of the sums, though the model reads them; counts them."""

    known: TokenRuns
    num_left_out: int = field(default=0, init=False)  # tokens of the documents drawn so far
    words = f"without tokens in runs of {RUN} that calibration read"

    def of(self, documents: Iterable[Tokens]) -> Iterator[Tokens]:
        """The documents that have a new token which counts, with these alone."""
        num_documents = num_new = 0
        for item in documents:
            num_documents += 1
            counted = np.ones(len(item.ids), np.bool_) if item.counted is None else item.counted
            new = counted & ~self.known.covers(item.ids)
            self.num_left_out += int(counted.sum() - new.sum())
            if new.any():
                num_new += 1
                yield item if new.sum() == counted.sum() else Tokens(item.ids, new)
        if num_documents and not num_new:
            raise CorpusError(
                f"All {num_documents} documents that calibration did not read repeat what it read, "
                f"in runs of {RUN} tokens; evaluate on another corpus."
            )
