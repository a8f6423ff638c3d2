"""What is measured of a candidate, and what must be able to measure it."""

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Protocol

from analysis.arrays import FloatArray
from analysis.progress import Progress
from pruning.allocation import Removed


@dataclass(frozen=True, slots=True, eq=False)
class BlockFitness:
    """Fitness on one block of samples."""

    values: FloatArray  # (samples of the block,) higher is better
    layers: int  # decoder layers that ran for it


class Fitness(Protocol):
    """Measures candidates on samples that come in blocks of a fixed order."""

    @property
    def num_blocks(self) -> int:
        """Blocks of samples; together they are the search samples."""
        ...

    @property
    def num_layers(self) -> int:
        """Decoder layers that run for a block where nothing is reused."""
        ...

    def prepare(self, candidates: Sequence[Removed]) -> Generator[Progress, None, float]:
        """These are measured next: what they share may be computed now.

        Returns:
            Seconds that this took for each of them.
        """
        ...

    def block(self, removed: Removed, number: int) -> BlockFitness:
        """Fitness of a candidate on one block."""
        ...

    def hold(self, candidates: Sequence[Removed]) -> None:
        """These are or will be parents, in order of their worth: what helps their children stays.

        Changes no value.
        """
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Score:
    """What is known of a candidate."""

    samples: FloatArray  # (n,) fitness on each; fewer than all where racing gave the candidate up
    is_complete: bool  # whether it saw all samples
    layers: int  # layer evaluations that it took, each on one block
    seconds: float  # time that it took

    @property
    def fitness(self) -> float:
        """Mean over the samples; minus infinity where it was given up."""
        return self.mean if self.is_complete else -math.inf

    @property
    def mean(self) -> float:
        """Mean over the samples that it saw."""
        return float(self.samples.mean())
