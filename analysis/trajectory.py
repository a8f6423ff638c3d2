"""Experts on the heaviest paths through the layers, sample by sample (MoE Pathfinder).

For a sample X with N tokens, every expert i of every layer is run on every token h_t, not only on
those routed to it:

    a_i = mean_t ||E_i(h_t)||_2        r_i = mean_t softmax(router logits)_i
    L_i = mean_t ||Y_t - E_i(h_t)||^2  (Y the routed output of the layer)

A path takes one expert a layer. The paper weighs it by its experts' importance e = softmax(-L) and
by the steps t_ij = a_i r_j between neighbours (Eq. 5, 8, 11). Since t factorises, the weight is a
sum over layers of log e_i + log a_i (but in the last) + log r_i (but in the first); the corrections
of Eq. 9-10 add exactly the two that are missing, so that every layer has the same

    u_i = log softmax(-L)_i + log a_i + log r_i.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import log_softmax

from analysis.errors import StatsError
from analysis.paths import Paths, top_paths, top_paths_through
from analysis.samples import SampleStats
from analysis.stats import FloatArray, Grid

Parts = Literal["both", "importance", "transition"]
PARTS: Final[tuple[Parts, ...]] = ("both", "importance", "transition")
EXPERT_COLUMNS: Final = (
    "layer",
    "expert",
    "num_samples",
    "path_weight",
    "node_weight",
    "rank",
)
# Paths of one sample that are worth following: beyond, the order of the nodes decides.
MOST_PATHS: Final = 1 << 14


@dataclass(frozen=True, eq=False)
class _Sample:
    """Logarithms of one sample's means, an array for each layer."""

    importance: list[FloatArray]
    activation: list[FloatArray]
    probability: list[FloatArray]


def _sample(stats: SampleStats, sample: int) -> _Sample:
    tokens = stats.num_tokens[sample]
    starts = np.cumsum([0, *stats.grid.counts])[1:-1]

    def by_layer(sums: FloatArray) -> list[FloatArray]:
        return np.split(sums[sample] / tokens, starts)

    # An expert whose output is 0 on the whole sample is on no path: log 0.
    with np.errstate(divide="ignore"):
        return _Sample(
            [log_softmax(-loss) for loss in by_layer(stats.loss)],
            [np.log(mean) for mean in by_layer(stats.activation)],
            [np.log(mean) for mean in by_layer(stats.probability)],
        )


def node_weights(stats: SampleStats, sample: int, parts: Parts = "both") -> list[FloatArray]:
    """u of every expert of one sample, an array for each layer; natural logarithms.

    Args:
        stats: of every sample.
        sample: which one.
        parts: `importance` leaves the steps out (the paper's "IS only"), `transition` leaves the
            importance out ("TI only", Table 5): what is left out counts as 1. The corrections at
            both ends belong to the importance (Eq. 9-10).
    """
    logs = _sample(stats, sample)
    last = len(logs.importance) - 1
    nodes = []
    for at, importance in enumerate(logs.importance):
        weight = np.zeros_like(importance)
        if parts != "transition":
            weight = weight + importance
        if parts == "both" or (at == last) == (parts == "importance"):
            weight = weight + logs.activation[at]
        if parts == "both" or (at == 0) == (parts == "importance"):
            weight = weight + logs.probability[at]
        nodes.append(weight)
    return nodes


def measured_steps(
    stats: SampleStats, sample: int, transitions: Sequence[FloatArray]
) -> tuple[list[FloatArray], list[FloatArray]]:
    """Nodes and steps where the step is how often a token really goes from i on to j.

    Not in the paper, whose step a_i r_j knows no pairs: t_ij = a_i P(j | i), with P the share of
    the tokens routed to i that the next layer routes to j.

    Args:
        stats: of every sample.
        sample: which one.
        transitions: for each layer but the last, (experts, experts of the next) tokens of this
            sample that both selected.
    """
    logs = _sample(stats, sample)
    nodes = [importance.copy() for importance in logs.importance]
    nodes[0] += logs.probability[0]
    nodes[-1] += logs.activation[-1]
    steps = []
    with np.errstate(divide="ignore", invalid="ignore"):
        for activation, counts in zip(logs.activation, transitions, strict=False):
            total = counts.sum(axis=1, keepdims=True)
            share = np.where(total > 0, counts / total, 0.0)
            steps.append(activation[:, None] + np.log(share))
    return nodes, steps


@dataclass(frozen=True, eq=False)
class Trajectories:
    """The heaviest paths of every sample, as far as they tell experts apart.

    Args:
        grid: the layers and their experts.
        first: (samples, experts of all layers) place of the first path that an expert is on; where
            it is on none of those followed, `followed`.
        weights: (samples, experts) logarithm of that path's weight; -inf where there is none.
        nodes: (experts,) mean over samples of u; -inf where an expert's output is 0 on one of them.
        followed: how many paths of each sample were followed.
    """

    grid: Grid
    first: NDArray[np.int64]
    weights: FloatArray
    nodes: FloatArray
    followed: int

    def union_size(self, count: int) -> int:
        """Experts on the first `count` paths of any sample."""
        return int((self.first < count).any(axis=0).sum())

    def smallest_count(self, num_kept: int) -> int:
        """The smallest number of paths whose union has `num_kept` experts; `followed` if none."""
        enters = np.sort(self.first.min(axis=0))
        return min(int(enters[num_kept - 1]) + 1, self.followed)

    def table(self, count: int) -> pd.DataFrame:
        """EXPERT_COLUMNS: how much the first `count` paths of each sample need an expert.

        Returns:
            ``num_samples`` whose paths hold it, ``path_weight`` of the best of these paths (NaN
            where there is none), ``node_weight`` its mean u, and ``rank`` over all layers, 0 =
            first to keep: more samples, then the better path, then the larger u, then the lower
            layer and expert.
        """
        held = self.first < count
        num_samples = held.sum(axis=0)
        best = np.where(held, self.weights, -np.inf).max(axis=0)
        index = self.grid.index()
        order = np.lexsort(
            (index["expert"], index["layer"], -self.nodes, -best, -num_samples.astype(np.int64))
        )
        rank = np.empty(len(order), dtype=np.int64)
        rank[order] = np.arange(len(order))
        return index.assign(
            num_samples=num_samples,
            path_weight=np.where(num_samples > 0, best, np.nan),
            node_weight=self.nodes,
            rank=rank,
        )[list(EXPERT_COLUMNS)]


def follow(
    stats: SampleStats,
    count: int,
    *,
    parts: Parts = "both",
    transitions: Sequence[Sequence[FloatArray]] = (),
) -> Trajectories:
    """The first `count` paths of every sample.

    Args:
        stats: of every sample; those without a token are left out.
        count: paths of each sample, the paper's m.
        parts: see `node_weights`; not with `transitions`.
        transitions: by sample, see `measured_steps`; the paper's own steps without.

    Raises:
        StatsError: no sample has a token.
    """
    samples = [int(sample) for sample in np.flatnonzero(stats.num_tokens)]
    if not samples:
        raise StatsError("No sample has a token to follow.")
    total = int(sum(stats.grid.counts))
    first = np.full((len(samples), total), count, dtype=np.int64)
    weights = np.full((len(samples), total), -np.inf)
    for row, sample in enumerate(samples):
        if transitions:
            nodes, steps = measured_steps(stats, sample, transitions[sample])
            paths = top_paths_through(nodes, steps, count)
        else:
            paths = top_paths(node_weights(stats, sample, parts), count)
        _note(paths, stats.grid, first[row], weights[row])
    # A mean over logarithms: -inf of one sample is -inf of all.
    nodes = np.mean([np.concatenate(node_weights(stats, each, parts)) for each in samples], axis=0)
    return Trajectories(stats.grid, first, weights, nodes, count)


def _note(paths: Paths, grid: Grid, first: NDArray[np.int64], weights: FloatArray) -> None:
    """Write down where each expert is first met; impossible paths meet nobody."""
    possible = np.isfinite(paths.weights)
    offsets = np.cumsum([0, *grid.counts])[:-1]
    ids = paths.experts[possible] + offsets
    met, places = np.unique(ids, return_index=True)
    first[met] = places // ids.shape[1]
    weights[met] = paths.weights[possible][first[met]]


def follow_until(
    stats: SampleStats, num_kept: int, *, parts: Parts = "both", limit: int = MOST_PATHS
) -> Trajectories:
    """Follow ever more paths until their union has `num_kept` experts, or `limit` are followed."""
    count = 1
    while True:
        found = follow(stats, count, parts=parts)
        if found.union_size(count) >= num_kept or count >= limit:
            return found
        count = min(4 * count, limit)
