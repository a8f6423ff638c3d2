"""Candidates measured layer by layer, all in one pass: for models larger than memory.

Each weight is read once for all of them. The values are those of the loaded model, bit for bit.
"""

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from analysis.arrays import FloatArray
from analysis.calibration.loading import CalibrationSettings, resolve_dtype
from analysis.model import MoEModel
from analysis.progress import Progress
from pruning.allocation import Removed
from pruning.evaluate.candidate import MeasureSettings, measure_hidden
from pruning.evaluate.full_side import full_side
from pruning.evaluate.result import MEASURES
from pruning.evaluate.samples import Samples
from pruning.evaluate.streamed import Asked, Ends, partial_folder, run_plans
from pruning.plan import PruningPlan
from pruning.search.run import BlockFitness

# Of each batch: position function -> (its samples,) means over the scored positions of each; and
# the decoder layers that ran for this candidate.
Measured = Sequence[tuple[Mapping[str, FloatArray], int]]


@dataclass(frozen=True, eq=False)
class StreamedRuns:
    """Runs candidates of a model that is never loaded as a whole."""

    model: MoEModel
    samples: Samples
    running: CalibrationSettings  # dtype, device, where hidden states lie
    plan_of: Callable[[Removed], PruningPlan]  # the plan that removes so many of each layer
    settings: MeasureSettings
    folder: Path  # an interrupted pass resumes from what it left here

    def run(
        self, candidates: Sequence[Removed]
    ) -> Generator[Progress, None, dict[Removed, Measured]]:
        """Measure all candidates in one pass over the weights."""
        plans = {removed: self.plan_of(removed) for removed in candidates}
        asked = tuple(plans.values())
        dtype = resolve_dtype(self.running.dtype, self.model)
        facts = (self.model.identity, dtype, self.samples.batch_size, self.samples.sequences.digest)
        with partial_folder(self.folder, facts, self.samples.processes) as at:
            ends = yield from run_plans(
                self.model, Asked(asked, asked), [self.samples], self.running, at
            )
            found = yield from self._measured(ends, plans)
            ends.clear()
        return found

    def _measured(
        self, ends: Ends, plans: Mapping[Removed, PruningPlan]
    ) -> Generator[Progress, None, dict[Removed, Measured]]:
        original = partial(ends.hidden, self.samples, None)
        folder = self.running.placement.hidden_states_dir
        full = yield from full_side(ends.head, self.samples, original, folder)
        found: dict[Removed, Measured] = {}
        with closing(full):
            for removed, plan in plans.items():
                yield Progress("comparing with the original model", len(found), len(plans), "plans")
                layers, blocks = ends.layers(plan), []
                for batch in self.samples.batches():
                    hidden_ND = ends.hidden(self.samples, plan, batch)
                    sums = measure_hidden(full, batch, hidden_ND, self.settings)
                    means = {name: each / batch.counts for name, each in sums.items()}
                    blocks.append((means, layers))
                found[removed] = blocks
        return found


@dataclass(eq=False)
class StreamedFitness:
    """See `Fitness`; measures the candidates of a generation together, in `prepare`."""

    runs: StreamedRuns
    measure: str
    num_layers: int
    _known: dict[Removed, Measured] = field(default_factory=dict, init=False)

    @property
    def num_blocks(self) -> int:
        """Batches of the search samples, of all processes."""
        return -(-len(self.runs.samples) // self.runs.samples.batch_size)

    def prepare(self, candidates: Sequence[Removed]) -> Generator[Progress, None, float]:
        """Measure these; the seconds that each took."""
        started = time.monotonic()
        self._known = yield from self.runs.run(candidates)
        return (time.monotonic() - started) / len(candidates)

    def block(self, removed: Removed, number: int) -> BlockFitness:
        """Mean of the measure over the scored positions of each sample of an own batch."""
        means, layers = self._known[removed][number // self.runs.samples.processes.world]
        chosen = MEASURES[self.measure]
        sign = 1 if chosen.higher_is_better else -1
        return BlockFitness(sign * means[chosen.sums], layers)

    def hold(self, candidates: Sequence[Removed]) -> None:
        """Nothing is kept between generations."""
