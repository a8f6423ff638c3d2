"""What measures candidates on batches of samples, whatever way the model runs."""

from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from analysis.numbers.arrays import FloatArray
from analysis.progress import Progress
from pruning.measures.result import SampleSums
from pruning.measures.samples import SampleBatch
from pruning.plan.units import Removed

# Of a batch: position function -> sums over the scored positions of each sample, see
# `measure_hidden`; and the decoder layers that ran for this candidate.
Measurement = tuple[Mapping[str, SampleSums], int]


class Runs(Protocol):
    """Measures candidates; in each process of a launcher the same calls give the same values."""

    num_batches: int  # of all processes
    num_layers: int  # decoder layers that run for a batch if nothing is reused
    ahead: int  # runs to begin before the result of one is taken; 0 if that gains nothing

    def open(self) -> AbstractContextManager[None]:
        """Candidates run inside; an error there reaches all processes."""
        ...

    def prepare(self, candidates: Sequence[Removed]) -> Generator[Progress, None, None]:
        """Compute what these candidates share, before they are measured."""
        ...

    def begin(self, removed: Removed, number: int) -> None:
        """Begin to run a candidate on a batch, in the order in which results are taken."""
        ...

    def run(self, removed: Removed, number: int) -> Measurement:
        """Measure a candidate on a batch."""
        ...

    def run_base(self, base: Removed, number: int) -> int:
        """Run and hold what several candidates start from; the layers that ran."""
        ...

    def hold(self, candidates: Sequence[Removed]) -> None:
        """Keep what helps candidates that begin like these, the first ones first."""
        ...

    def forget(self) -> None:
        """Keep nothing: later runs share nothing with earlier ones."""
        ...


def with_counts(sums: Mapping[str, FloatArray], batch: SampleBatch) -> dict[str, SampleSums]:
    """Sums of each sample of a batch, with what they are of."""
    counts = batch.counts
    return {name: SampleSums(sum_, counts) for name, sum_ in sums.items()}
