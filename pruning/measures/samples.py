"""Evaluation samples: token sequences, and the positions at which predictions are compared.

A position is scored if the next token belongs to the answer: the model's output there predicts it.
Without a marked answer, every token but the first of its document is predicted.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from analysis.calibration.distributed import Processes
from analysis.corpora.sequences import TokenBatch, TokenSequences
from analysis.errors import CorpusError
from analysis.numbers.arrays import FloatArray
from pruning.measures.result import SampleSums


@dataclass(frozen=True, slots=True, eq=False)
class SampleBatch:
    """A batch of samples."""

    number: int  # of the batch, from 0
    samples: range  # numbers of its samples
    tokens: TokenBatch  # model input; row i is sample samples[i]
    scored: NDArray[np.bool_]  # (samples, length), see `scored_positions`

    @property
    def targets(self) -> NDArray[np.int64]:
        """(positions,) ids of the tokens that follow the scored positions, row after row."""
        return np.roll(self.tokens.input_ids, -1, axis=1)[self.scored]

    @property
    def counts(self) -> NDArray[np.int64]:
        """(samples,) scored positions."""
        return np.asarray(self.scored.sum(axis=1), dtype=np.int64)


def scored_positions(batch: TokenBatch) -> NDArray[np.bool_]:
    """(sequences, length): True where a counted token of the same document follows."""
    scored = np.zeros_like(batch.mask)
    scored[:, :-1] = batch.mask[:, 1:] & batch.counted[:, 1:]
    if batch.positions is not None:
        # Position 0 begins another document, which the previous one does not predict.
        scored[:, :-1] &= batch.positions[:, 1:] > 0
    return scored


@dataclass(frozen=True, eq=False)
class Samples:
    """The samples of one corpus; each has at least one scored position.

    Several processes share them: each takes its batches in turn.
    """

    sequences: TokenSequences  # one row per sample; the counted tokens are the answer
    batch_size: int = 8  # samples per forward; changes numbers by rounding only
    num_unscored: int = 0  # sequences left out because they have no token of an answer
    processes: Processes = field(default_factory=Processes)  # that share the batches

    def __len__(self) -> int:
        return len(self.sequences.rows)

    def batches(self) -> Iterator[SampleBatch]:
        """The batches of this process, in order; a single process has all."""
        rank, world = self.processes.rank, self.processes.world
        return (batch for batch in self.all_batches() if batch.number % world == rank)

    def gather(self, local_values: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
        """Values of all samples in every process, from each process's values of its own samples.

        Each array is (samples of this process's batches,) and becomes (samples,); exact.
        """
        if self.processes.world == 1:
            return dict(local_values)
        rows = np.concatenate([np.asarray(batch.samples) for batch in self.batches()])
        return gather_rows(self.processes, rows, local_values, len(self))

    def all_batches(self) -> Iterator[SampleBatch]:
        """The batches of all processes, in order."""
        first = 0
        for number, batch in enumerate(self.sequences.batches(self.batch_size)):
            rows = range(first, first + len(batch.mask))
            first = rows.stop
            yield SampleBatch(number, rows, batch, scored_positions(batch))

    @cached_property
    def num_scored(self) -> NDArray[np.int64]:
        """(samples,) scored positions of each sample."""
        return np.concatenate([batch.counts for batch in self.all_batches()])

    def sums_of(self, values: FloatArray) -> SampleSums:
        """Sums over the scored positions of each sample, (samples,), with what they are of."""
        return SampleSums(values, self.num_scored, self.sequences.documents)


def gather_rows(
    processes: Processes,
    rows: NDArray[np.int64],
    local_values: Mapping[str, FloatArray],
    total: int,
) -> dict[str, FloatArray]:
    """Values of all rows in every process, from each process's values of its own rows; exact.

    `rows` are the numbers of this process's rows among `total`. Each array is (rows,) and becomes
    (total,).
    """
    arrays = {name: np.zeros(total) for name in local_values}
    parts = {"rows": torch.from_numpy(rows)}
    parts |= {name: torch.tensor(values) for name, values in local_values.items()}
    for part in processes.incoming(parts):
        for name, values in arrays.items():
            values[part["rows"].numpy()] = part[name].numpy()
    # JSON preserves floats exactly.
    shared = processes.share({name: values.tolist() for name, values in arrays.items()})
    return {name: np.array(values, dtype=np.float64) for name, values in shared.items()}


def make_samples(
    sequences: TokenSequences, batch_size: int = 8, processes: Processes | None = None
) -> Samples:
    """The sequences that have something to score, shared by the processes."""
    scored = [scored_positions(batch).any(axis=1) for batch in sequences.batches(batch_size)]
    keep = np.flatnonzero(np.concatenate(scored)) if scored else np.zeros(0, dtype=np.int64)
    if not len(keep):
        raise CorpusError(
            f"No sequence of the corpus {sequences.corpus} has a token to predict; give longer "
            "sequences, or count all tokens."
        )
    processes = processes or Processes()
    if (num_batches := -(-len(keep) // batch_size)) < processes.world:
        raise CorpusError(
            f"{processes.world} processes share {num_batches} batches of {sequences.corpus}; start "
            f"fewer, or take more samples or a smaller --batch-size than {batch_size}."
        )
    num_unscored = len(sequences.rows) - len(keep)
    if num_unscored:
        sequences = sequences.picked(keep)
    return Samples(sequences, batch_size, num_unscored, processes)
