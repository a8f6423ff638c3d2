"""SampleStats: what the group `dense` measured of every expert on every sample."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.errors import StatsError
from analysis.stats import FloatArray, Grid
from analysis.store import SAMPLES, Run, read_table

# One row for each sample, layer and expert; sums over the sample's tokens.
SAMPLE_COLUMNS: Final = (
    "sample",
    "layer",
    "expert",
    "num_tokens",
    "activation_sum",
    "probability_sum",
    "loss_sum",
)


@dataclass(frozen=True, eq=False)
class SampleStats:
    """Dense statistics of every sample.

    Args:
        grid: the layers and their experts, in the order of the arrays' last axis.
        num_tokens: (samples,) tokens that count.
        activation, probability, loss: (samples, experts of all layers) sums of ||E_i(h)||_2, of the
            router's softmax, and of ||Y - E_i(h)||^2.
    """

    grid: Grid
    num_tokens: NDArray[np.int64]
    activation: FloatArray
    probability: FloatArray
    loss: FloatArray

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
    """Inverse of `SampleStats.to_table`.

    Raises:
        StatsError: the rows are not each expert of each sample once, in order.
    """
    index = grid.index()
    samples, rest = divmod(len(table), len(index))
    wanted = np.tile(index.to_numpy(), (samples, 1))
    if rest or not (table[["layer", "expert"]].to_numpy() == wanted).all():
        raise StatsError("The table of samples does not hold each expert of each sample once.")
    shape = (samples, len(index))

    def column(name: str) -> FloatArray:
        return table[name].to_numpy(dtype=np.float64).reshape(shape)

    tokens = table["num_tokens"].to_numpy(dtype=np.int64).reshape(shape)[:, 0]
    sums = (column(name) for name in ("activation_sum", "probability_sum", "loss_sum"))
    return SampleStats(grid, tokens, *sums)


def load_sample_stats(run: Run) -> SampleStats:
    """The dense statistics of a run.

    Raises:
        StatsError: the run was made without the group `dense`, or its file is damaged.
    """
    if SAMPLES not in run.manifest.files:
        raise StatsError(
            f"The run {run.manifest.run_id} has no statistics of samples; calibrate with --groups "
            "routed,dense."
        )
    return sample_stats(read_table(run, SAMPLES), Grid(run.manifest.model.layers))


def joined_samples(tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """The samples of several runs of a model, one run after the other."""
    offsets = np.cumsum([0, *(table["sample"].max() + 1 for table in tables)])
    numbered = [
        table.assign(sample=table["sample"] + offset)
        for table, offset in zip(tables, offsets[:-1], strict=True)
    ]
    return pd.concat(numbered, ignore_index=True)
