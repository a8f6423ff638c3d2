"""SampleStats: what the group `dense` measured of every expert on every sample."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

import numpy as np

from analysis.errors import StatsError
from analysis.lazy import pd
from analysis.numbers.arrays import FloatArray, IntArray
from analysis.stats.grid import Grid

# One row per sample, layer and expert; sums over the sample's tokens.
SAMPLE_COLUMNS: Final = (
    "sample",
    "layer",
    "expert",
    "num_tokens",
    "activation_sum",
    "probability_sum",
    "loss_sum",
)
# One row per pair of experts of neighbouring sparse layers that some token chose both of.
TRANSITION_COLUMNS: Final = ("layer", "expert", "next_expert", "num_tokens")


@dataclass(frozen=True, eq=False)
class SampleStats:
    """Dense statistics of every sample."""

    grid: Grid  # the experts, in the order of the arrays' last axis
    num_tokens: IntArray  # (samples,) tokens that count
    activation: FloatArray  # (samples, experts of all layers) sums of ||E_i(h)||_2,
    probability: FloatArray  # of the router's softmax,
    loss: FloatArray  # and of ||Y - E_i(h)||^2
    # Per layer but the last, (experts, experts of the next): tokens of all samples that chose both.
    transitions: tuple[IntArray, ...] = ()

    @property
    def num_samples(self) -> int:
        """Samples with at least one token."""
        return int((self.num_tokens > 0).sum())

    def to_table(self) -> pd.DataFrame:
        """SAMPLE_COLUMNS, by sample, layer and expert."""
        index, samples = self.grid.index(), len(self.num_tokens)
        repeated = pd.concat([index] * samples, ignore_index=True)
        return repeated.assign(
            sample=np.repeat(np.arange(samples, dtype=np.int64), len(index)),
            num_tokens=np.repeat(self.num_tokens, len(index)),
            activation_sum=self.activation.reshape(-1),
            probability_sum=self.probability.reshape(-1),
            loss_sum=self.loss.reshape(-1),
        )[list(SAMPLE_COLUMNS)]


def sample_stats(table: pd.DataFrame, grid: Grid) -> SampleStats:
    """Inverse of `SampleStats.to_table`."""
    index = grid.index()
    samples, rest = divmod(len(table), len(index))
    expected = np.tile(index.to_numpy(), (samples, 1))
    if rest or not (table[["layer", "expert"]].to_numpy() == expected).all():
        raise StatsError("The table of samples does not hold each expert of each sample once.")
    shape = (samples, len(index))

    def column(name: str) -> FloatArray:
        return table[name].to_numpy(dtype=np.float64).reshape(shape)

    tokens = table["num_tokens"].to_numpy(dtype=np.int64).reshape(shape)[:, 0]
    sums = column("activation_sum"), column("probability_sum"), column("loss_sum")
    return SampleStats(grid, tokens, *sums)


def joined_stats(parts: Sequence[SampleStats]) -> SampleStats:
    """The samples of several runs of a model; their transitions are added."""

    def stacked(name: str) -> FloatArray:
        return np.concatenate([getattr(part, name) for part in parts])

    squares = zip(*(part.transitions for part in parts), strict=True)
    together = tuple(sum(square[1:], start=square[0]) for square in squares)
    tokens = np.concatenate([part.num_tokens for part in parts])
    sums = stacked("activation"), stacked("probability"), stacked("loss")
    return SampleStats(parts[0].grid, tokens, *sums, transitions=together)


@dataclass(frozen=True, eq=False)
class SamplePart:
    """The samples of a run, which may be large: read on demand, with a cache of tables of them."""

    read: Callable[[], SampleStats]
    factor: float = 1.0  # their weight in a blend
    _made: dict[str, pd.DataFrame] = field(default_factory=dict, repr=False)

    def table(self, name: str, make: Callable[[SampleStats], pd.DataFrame]) -> pd.DataFrame:
        """The table of this name, made on first use."""
        if name not in self._made:
            self._made[name] = make(self.read())
        return self._made[name]


def transition_table(grid: Grid, counts: Sequence[IntArray]) -> pd.DataFrame:
    """TRANSITION_COLUMNS of `SampleStats.transitions`, without pairs that no token chose."""
    parts = []
    for layer, square in zip(grid.layers, counts, strict=False):
        experts, others = np.nonzero(square)
        chosen = (np.full(len(experts), layer.index), experts, others, square[experts, others])
        parts.append(pd.DataFrame(dict(zip(TRANSITION_COLUMNS, chosen, strict=True))))
    empty = pd.DataFrame(columns=list(TRANSITION_COLUMNS))
    return (pd.concat(parts, ignore_index=True) if parts else empty).astype("int64")


def transitions_of(table: pd.DataFrame, grid: Grid) -> tuple[IntArray, ...]:
    """Inverse of `transition_table`."""
    counts = []
    for layer, after in pairwise(grid.layers):
        square = np.zeros((layer.num_experts, after.num_experts), dtype=np.int64)
        rows = table[table["layer"] == layer.index]
        experts, others = rows["expert"].to_numpy(), rows["next_expert"].to_numpy()
        inside = (experts >= 0) & (experts < len(square)) & (others >= 0)
        if not (inside & (others < square.shape[1])).all():
            raise StatsError(f"The transitions of layer {layer.index} name unknown experts.")
        np.add.at(square, (experts, others), rows["num_tokens"].to_numpy())
        counts.append(square)
    if sum(int(square.sum()) for square in counts) != int(table["num_tokens"].sum()):
        raise StatsError("The transitions name layers that the model does not have.")
    return tuple(counts)
