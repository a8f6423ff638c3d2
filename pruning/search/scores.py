"""Scores of candidates, which lie in the table of measurements: a search resumes from it alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from analysis.corpora.sequences import TokenSequences
from analysis.numbers.arrays import FloatArray
from pruning.measurements.block import Block, SampleSet
from pruning.measurements.table import Measurements, PlanSums, merged
from pruning.measures.points import sample_ids
from pruning.measures.result import MEASURES, SampleSums
from pruning.plan.plan import PruningPlan
from pruning.plan.units import Removed

if TYPE_CHECKING:
    from analysis.calibration.distributed import Processes


@dataclass(frozen=True, slots=True, eq=False)
class BlockFitness:
    """What was measured of a candidate on one block of samples."""

    sums: FloatArray  # (samples of the block,) float64, of the measure
    counts: NDArray[np.int64]  # (samples of the block,) what they are sums over, at least one
    layers: int  # decoder layers that ran

    @classmethod
    def joined(cls, blocks: Sequence[Self]) -> Self:
        """All of these blocks as one."""
        return cls(
            np.concatenate([block.sums for block in blocks]),
            np.concatenate([block.counts for block in blocks]),
            sum(block.layers for block in blocks),
        )


@dataclass(frozen=True, slots=True, eq=False)
class Score:
    """The measured fitness of a candidate."""

    samples: FloatArray  # (n,) fitness on each sample, higher is better
    layers: int  # layer evaluations, each on one block
    seconds: float

    @property
    def fitness(self) -> float:
        """Mean over the samples."""
        return float(self.samples.mean())


@dataclass(frozen=True, eq=False)
class Scores:
    """The scores of a search: read from the table, and appended to it as soon as they are known.

    Under a launcher the first process reads and writes for all.
    """

    table: Measurements
    model: str  # identity of the original model
    plan_of: Callable[[Removed], PruningPlan]  # removed per layer -> plan
    sizes: tuple[int, ...]  # experts or neurons of each layer with experts
    sequences: TokenSequences  # the search samples
    measure: str  # name of the fitness, of MEASURES
    dtype: str
    seed: int  # of measures that draw
    made: Mapping[str, Any]  # batch size and device: only what was measured with the same counts
    processes: Processes  # that search together
    known: dict[Removed, Score] = field(default_factory=dict, init=False)  # as they became known
    _digests: dict[Removed, str] = field(default_factory=dict, init=False)

    def look_up(self, candidates: Sequence[Removed]) -> None:
        """Read what the table has of these candidates."""
        found: list[Any] = []
        with self.processes.together():
            if self.processes.is_first:
                self.table.refresh()
                found = [self._plain(removed) for removed in candidates]
        # JSON preserves floats exactly.
        for removed, plain in zip(candidates, self.processes.share(found), strict=True):
            if plain:
                samples, layers, seconds = plain
                self.known[removed] = Score(np.array(samples, dtype=np.float64), layers, seconds)

    def add(self, removed: Removed, whole: BlockFitness, seconds: float) -> Score:
        """Keep what was measured on all samples; it survives the end of this process.

        Raises:
            StatsError: it cannot be written, by the first process.
        """
        seconds = round(seconds, 4)
        score = self._score(whole.sums, whole.counts, whole.layers, seconds)
        sums = SampleSums(whole.sums, whole.counts, self.sequences.documents)
        if self.processes.is_first:
            kept = tuple(size - gone for size, gone in zip(self.sizes, removed, strict=True))
            made = {"layers": whole.layers, "seconds": seconds, **self.made}
            plan = PlanSums(kept, self._ids, {self._row: sums})
            blocks = plan.blocks(self.model, self._digest(removed), self._where, made)
            self.table.add(blocks, sync=False)
        self.known[removed] = score
        return score

    def sync(self) -> None:
        """Make all scores so far survive a loss of power."""
        with self.processes.together():
            if self.processes.is_first:
                self.table.sync()

    @cached_property
    def _where(self) -> SampleSet:
        return SampleSet(self.sequences.corpus, self.sequences.digest, self.dtype, self.seed)

    @cached_property
    def _ids(self) -> tuple[str, ...]:
        return sample_ids(self.sequences)

    @property
    def _row(self) -> str:
        return MEASURES[self.measure].row

    def _digest(self, removed: Removed) -> str:
        if removed not in self._digests:
            self._digests[removed] = self.plan_of(removed).digest
        return self._digests[removed]

    def _plain(self, removed: Removed) -> tuple[list[float], int, float] | None:
        """What the table has of a candidate, as plain JSON."""
        for block in self.table.blocks(self.model, self._digest(removed), self.dtype):
            known = merged([block], self._where) if self._is_alike(block) else None
            if known and known.samples == self._ids and (sums := known.sums.get(self._row)):
                layers, seconds = known.made["layers"], known.made["seconds"]
                score = self._score(sums.sums, sums.counts, layers, seconds)
                return score.samples.tolist(), score.layers, score.seconds
        return None

    def _is_alike(self, block: Block) -> bool:
        """Whether it was measured as here; evaluations, which may be rounded, name no layers."""
        costs = (block.made.get(name) for name in ("layers", "seconds"))
        return self.made.items() <= block.made.items() and all(map(_is_cost, costs))

    def _score(
        self, sums: FloatArray, counts: NDArray[np.int64], layers: int, seconds: float
    ) -> Score:
        sign = 1 if MEASURES[self.measure].higher_is_better else -1
        return Score(sign * (sums / counts), layers, seconds)


def _is_cost(value: object) -> bool:
    return type(value) in (int, float) and 0 <= value < math.inf  # type: ignore[operator]
