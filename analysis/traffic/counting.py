"""Counts of routed tokens from the answers of a server, one answer in memory at a time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from analysis.corpora.tokens import Count
from analysis.errors import StatsError
from analysis.numbers.arrays import BoolArray, IntArray
from analysis.traffic.arrays import Ids
from analysis.traffic.formats import RoutedTokens
from analysis.traffic.history import History, prefix_hashes, row_hashes
from analysis.traffic.layout import Layout

_ROWS = 1 << 14  # tokens of a step, whose copies are the most memory that counting takes
# Ids of a pruned model are small: no layer chose the last experts. Even routing would have chosen
# these so often, all layers together; at 1% of their even share a miss still has odds of e^-20.
_LEAST_EXPECTED = 2_000
_LEAST_UNSEEN = 16  # one in so many, in every layer
# Zeros in so many layers are no choice of one expert: of 8 experts that is 1 in 10^5 by chance.
_LAYERS_OF_BLANK = 6


@dataclass(slots=True)
class Tally:
    """Sums of the answers so far, and the tokens that stay out of them."""

    layout: Layout
    count: Count
    counts: IntArray = field(init=False)  # (layers, experts)
    num_tokens: int = 0  # with routed experts, each token of a history once
    num_counted: int = 0
    num_repeated: int = 0  # of a history that an earlier request held
    num_surplus: int = 0  # drafts not accepted
    num_unrecorded: int = 0  # without routed experts, though they have a row
    _history: History = field(default_factory=History)

    def __post_init__(self) -> None:
        most = max(layer.num_experts for layer in self.layout.layers)
        self.counts = np.zeros((len(self.layout.layers), most), dtype=np.int64)

    def add(self, answers: Iterable[RoutedTokens]) -> None:
        """Add the answers of a line; a ValueError, and nothing is added, if one is odd."""
        read = [(answer, _Read(self.layout, answer)) for answer in answers]
        if self.count == "response" and any(answer.num_prompt is None for answer, _ in read):
            raise ValueError(
                "it does not say which tokens are the prompt's (no usage, prompt_routed_experts or "
                "token ids), so --count response is not possible"
            )
        for answer, rows in read:
            self._add(answer, rows)

    def _add(self, answer: RoutedTokens, rows: _Read) -> None:
        repeated = self._repeated(answer, rows)
        place = np.arange(len(answer.ids))
        is_repeated = (place >= repeated.start) & (place < repeated.stop)
        is_new = rows.has_choice & ~is_repeated
        is_counted = is_new.copy()
        if self.count == "response":
            is_counted &= place >= (answer.num_prompt or 0)
        self.counts += rows.counts(is_counted)
        self.num_tokens += int(is_new.sum())
        self.num_counted += int(is_counted.sum())
        self.num_repeated += len(repeated)
        self.num_surplus += answer.num_surplus
        self.num_unrecorded += int((~rows.has_choice & ~is_repeated).sum())

    def _repeated(self, answer: RoutedTokens, rows: _Read) -> range:
        """Rows of the prompt that repeat an earlier request."""
        if answer.token_ids is not None:
            hashes = row_hashes(answer.token_ids)
        elif answer.is_from_first:
            hashes = rows.hashes()
        else:
            return range(0)
        prefixes, skipped = prefix_hashes(hashes), len(hashes) - len(answer.ids)
        repeated = self._history.repeated(prefixes)
        self._history.add(prefixes[skipped:])
        most = len(answer.ids) if answer.num_prompt is None else answer.num_prompt
        return range(max(repeated.start - skipped, 0), min(repeated.stop - skipped, most))

    @property
    def num_unseen(self) -> int:
        """Last experts that no layer chose, as if pruned; 0 where that can be chance."""
        layers = self.layout.layers
        unseen = []
        for layer, counts in zip(layers, self.counts, strict=True):
            chosen = np.flatnonzero(counts)
            last = int(chosen[-1]) if len(chosen) else -1
            unseen.append(layer.num_experts - 1 - last)
        largest = max(layer.num_experts for layer in layers)
        fewest = min(unseen)
        expected = self.num_counted * self.layout.top_k * len(layers) * fewest / largest
        are_many = fewest >= max(1, largest // _LEAST_UNSEEN) and expected >= _LEAST_EXPECTED
        return fewest if are_many and len(layers) > 1 else 0

    def check_whole(self, advice: str) -> None:
        """Refuse ids that look like those of a pruned model: small ones alone, in every layer.

        `advice` says, in a sentence, what to do then.
        """
        if fewest := self.num_unseen:
            raise StatsError(
                f"In {self.num_counted:,} tokens no layer chose {last_experts(fewest)}: these "
                "answers look like those of a pruned model, whose experts have new numbers. "
                f"{advice} If {self.layout.name} itself answered, and its routers never choose "
                "them, add --allow-small-ids."
            )


def last_experts(number: int) -> str:
    """So many of the last experts of each layer, in words."""
    return f"the last {number} experts" if number > 1 else "its last expert"


class _Read:
    """The ids of one answer, checked."""

    def __init__(self, layout: Layout, answer: RoutedTokens) -> None:
        self._layout, self._ids = layout, answer.ids
        tokens, planes, _ = answer.ids.shape
        layout.check(answer.ids.shape)
        self._planes = layout.planes(planes) if tokens else np.zeros(0, dtype=np.int64)
        self.has_choice = np.zeros(tokens, dtype=np.bool_)
        for first in range(0, tokens, _ROWS):
            self.has_choice[first : first + _ROWS] = self._check(self._block(first))

    def _block(self, first: int) -> Ids:
        return self._ids[first : first + _ROWS]

    def _check(self, block: Ids) -> BoolArray:
        """Which tokens have experts; all others have zeros everywhere, or -1."""
        layout = self._layout
        is_dense = np.ones(block.shape[1], dtype=np.bool_)
        is_dense[self._planes] = False
        chosen = block[:, self._planes]
        blank: BoolArray = np.all(chosen < 0, axis=(1, 2))
        if layout.top_k > 1 or len(layout.layers) >= _LAYERS_OF_BLANK:
            blank = blank | np.all(chosen == 0, axis=(1, 2))
        if len(odd := np.flatnonzero((block[:, is_dense] > 0).any(axis=(0, 2)))):
            plane = int(np.flatnonzero(is_dense)[odd[0]])
            raise ValueError(
                f"it names experts in layer {plane}, which has none in {layout.name}: answers of "
                "another model"
            )
        rows = chosen[~blank]
        for position, layer in enumerate(layout.layers):
            ids = rows[:, position]
            if not ids.size:
                continue
            if ids.max() >= layer.num_experts or ids.min() < 0:
                odd_id = int(ids.max() if ids.max() >= layer.num_experts else ids.min())
                raise ValueError(
                    f"it names expert {odd_id} of layer {layer.index}, which has "
                    f"{layer.num_experts} in {layout.name}: answers of another model, or of the "
                    "original of a pruned one"
                )
            ordered = np.sort(ids, axis=1)
            if len(twice := np.flatnonzero((ordered[:, 1:] == ordered[:, :-1]).any(axis=1))):
                raise ValueError(
                    f"layer {layer.index} chooses an expert twice for a token "
                    f"({ids[twice[0]].tolist()}), so it was not recorded, or the shape is another"
                )
        has_choice: BoolArray = ~blank
        return has_choice

    def counts(self, mask: BoolArray) -> IntArray:
        """(layers, experts): tokens of the mask that each expert was chosen for."""
        layers = self._layout.layers
        most = max(layer.num_experts for layer in layers)
        total = np.zeros(len(layers) * most, dtype=np.int64)
        offsets = most * np.arange(len(layers), dtype=np.int64)[:, None]
        for first in range(0, len(mask), _ROWS):
            chosen = self._block(first)[mask[first : first + _ROWS]][:, self._planes]
            places = chosen.astype(np.int64) + offsets
            total += np.bincount(places.reshape(-1), minlength=len(total))
        return total.reshape(len(layers), most)

    def hashes(self) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
        """A hash of each token's experts."""
        starts = range(0, len(self._ids), _ROWS)
        parts = [row_hashes(self._block(first)[:, self._planes]) for first in starts]
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.uint64)
