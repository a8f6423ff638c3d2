"""Evaluation samples: token sequences, and the positions at which predictions are compared.

A position is scored if the token after it is of the answer: the model's output there predicts that
token. Where nothing is marked as an answer, every token but the first of its text is predicted.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from analysis.corpora import TokenBatch, TokenSequences
from analysis.errors import CorpusError


@dataclass(frozen=True, slots=True, eq=False)
class SampleBatch:
    """Some samples, side by side."""

    number: int  # of the batch, from 0
    samples: range  # numbers of its samples
    tokens: TokenBatch  # what the model is fed; row i is sample samples[i]
    # (samples, length) bool; True where the next token is of the answer. The last column is never
    # scored: nothing follows it.
    scored: NDArray[np.bool_]

    @property
    def targets(self) -> NDArray[np.int64]:
        """(positions,) ids of the tokens behind the scored positions, row after row."""
        return np.roll(self.tokens.input_ids, -1, axis=1)[self.scored]

    @property
    def counts(self) -> NDArray[np.int64]:
        """(samples,) scored positions of each row."""
        return np.asarray(self.scored.sum(axis=1), dtype=np.int64)


def scored_positions(batch: TokenBatch) -> NDArray[np.bool_]:
    """(sequences, length): True where the next token is real, counted, and of the same text."""
    scored = np.zeros_like(batch.mask)
    scored[:, :-1] = batch.mask[:, 1:] & batch.counted[:, 1:]
    if batch.positions is not None:
        # Position 0 begins another document, which the one before does not predict.
        scored[:, :-1] &= batch.positions[:, 1:] > 0
    return scored


@dataclass(frozen=True, eq=False)
class Samples:
    """The samples of one corpus; each has at least one scored position."""

    sequences: TokenSequences  # one row a sample; what counts is the answer
    batch_size: int = 8  # samples in one forward; changes no number beyond rounding
    num_unscored: int = 0  # sequences left out because no token of an answer is in them

    def __len__(self) -> int:
        return len(self.sequences.rows)

    def batches(self) -> Iterator[SampleBatch]:
        """All samples in a fixed order, in batches of a fixed size."""
        first = 0
        for number, batch in enumerate(self.sequences.batches(self.batch_size)):
            rows = range(first, first + len(batch.mask))
            first = rows.stop
            yield SampleBatch(number, rows, batch, scored_positions(batch))

    @cached_property
    def num_scored(self) -> NDArray[np.int64]:
        """(samples,) scored positions of each sample."""
        return np.concatenate([batch.counts for batch in self.batches()])


def make_samples(sequences: TokenSequences, batch_size: int = 8) -> Samples:
    """Samples of the sequences that have something to score."""
    scored = [scored_positions(batch).any(axis=1) for batch in sequences.batches(batch_size)]
    keep = np.flatnonzero(np.concatenate(scored)) if scored else np.zeros(0, dtype=np.int64)
    if not len(keep):
        raise CorpusError(
            f"No sequence of the corpus {sequences.corpus} has a token to predict; give longer "
            "sequences, or count all tokens."
        )
    num_unscored = len(sequences.rows) - len(keep)
    if num_unscored:
        counted, positions = sequences.counted, sequences.positions
        sequences = replace(
            sequences,
            rows=tuple(sequences.rows[number] for number in keep),
            counted=None if counted is None else tuple(counted[number] for number in keep),
            positions=None if positions is None else tuple(positions[number] for number in keep),
        )
    return Samples(sequences, batch_size, num_unscored)
