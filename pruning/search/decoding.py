"""Fitness by real decoding: SPEC-DEC, the share of drafted tokens that the original accepts.

Slow: every candidate drafts a continuation of every sample (arXiv:2603.06003, Table 4, compares it
with ESAP, its expectation on given text, as the fitness of a search).
"""

from collections.abc import Callable, Generator, Sequence

import numpy as np
from transformers import PreTrainedModel

from analysis.families.base import MoEFamily
from analysis.model.forwards import decoder_layers
from analysis.progress import Progress
from pruning.engine.masking import masked
from pruning.engine.speculative import Decoding, accept_batch, sharing_copy
from pruning.measures.samples import Samples
from pruning.plan.allocation import Removed
from pruning.plan.plan import PruningPlan
from pruning.search.scores import BlockFitness


class DecodingFitness:
    """See `Fitness`: a block is a batch; accepted of the tested tokens of each sample."""

    def __init__(
        self,
        loaded: PreTrainedModel,
        family: MoEFamily,
        samples: Samples,
        plan_of: Callable[[Removed], PruningPlan],
        seed: int,
    ) -> None:
        self._loaded, self._family, self._plan_of = loaded, family, plan_of
        self._draft = sharing_copy(loaded)
        self._decoding = Decoding(seed=seed)
        self._batches = tuple(samples.batches())
        self.num_blocks = len(self._batches)
        self.num_layers = len(decoder_layers(loaded, family))

    def prepare(self, _candidates: Sequence[Removed]) -> Generator[Progress, None, float]:
        """Nothing: each candidate decodes by itself."""
        yield from ()
        return 0.0

    def block(self, removed: Removed, number: int) -> BlockFitness:
        """Drafted tokens that the original accepts, and tests, of each sample of a batch."""
        with masked(self._draft, self._family, self._plan_of(removed)):
            counts = accept_batch(self._loaded, self._draft, self._batches[number], self._decoding)
        accepted, tested = np.array(counts, dtype=np.int64).T
        # Of a sample of which nothing is tested, nothing is accepted.
        return BlockFitness(accepted.astype(np.float64), np.maximum(tested, 1), self.num_layers)

    def hold(self, candidates: Sequence[Removed]) -> None:
        """Nothing: no hidden states are kept."""
