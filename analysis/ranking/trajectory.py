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

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from analysis.arrays import FloatArray, IntArray
from analysis.errors import StatsError, UserError, unknown_name
from analysis.lazy import pd
from analysis.ranking.clusters import nearest_to_centroids
from analysis.ranking.paths import top_paths_of_samples, top_paths_through
from analysis.stats.grid import Grid
from analysis.stats.samples import SampleStats

Parts = Literal["both", "importance", "transition"]
PARTS: Final[tuple[Parts, ...]] = get_args(Parts)
Steps = Literal["paper", "measured"]
STEPS: Final[tuple[Steps, ...]] = get_args(Steps)
PATH_COLUMNS: Final = ("layer", "expert", "num_samples", "path_weight", "node_weight", "rank")
# Paths of one sample that are worth following: beyond, the order of the nodes decides.
MOST_PATHS: Final = 1 << 14


@dataclass(frozen=True, slots=True)
class Weighing:
    """What weighs a path."""

    # `importance` leaves the steps out (the paper's "IS only"), `transition` leaves the importance
    # out ("TI only", Table 5): what is left out counts as 1. The corrections at both ends belong to
    # the importance (Eq. 9-10).
    parts: Parts = "both"
    # `paper`: t_ij = a_i r_j. `measured`: t_ij = a_i P(j | i), where P is the share of the tokens
    # that i selected which go on to j, of all that they go on to; not in the paper, whose step
    # knows no pairs.
    steps: Steps = "paper"

    def __post_init__(self) -> None:
        if self.parts not in PARTS:
            raise UserError(unknown_name("weight of paths", self.parts, PARTS))
        if self.steps not in STEPS:
            raise UserError(unknown_name("kind of transitions", self.steps, STEPS))


PAPER: Final = Weighing()


def node_weights(
    stats: SampleStats, parts: Parts = "both", steps: Steps = "paper"
) -> list[FloatArray]:
    """u of every expert and sample, (samples, experts) of each layer; natural logarithms.

    All samples must have tokens; `parts` and `steps` as in `Weighing`. A measured step has P(j | i)
    in place of r_j, so there log r is part of the first layer's nodes only.
    """
    starts = np.cumsum([0, *stats.grid.counts])[1:-1]

    def by_layer(sums: FloatArray) -> list[FloatArray]:
        return np.split(sums / stats.num_tokens[:, None], starts, axis=1)

    importance: list[FloatArray] = []
    for loss in by_layer(stats.loss):
        # log softmax(-L): only differences count, so nothing under- or overflows.
        shifted = -loss - (-loss).max(axis=-1, keepdims=True)
        importance.append(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))
    # An expert whose output is 0 on the whole sample is on no path: log 0.
    with np.errstate(divide="ignore"):
        activation = [np.log(mean) for mean in by_layer(stats.activation)]
        probability = [np.log(mean) for mean in by_layer(stats.probability)]
    last = len(importance) - 1
    nodes = []
    for at, each in enumerate(importance):
        weight = np.zeros_like(each)
        if parts != "transition":
            weight = weight + each
        if parts == "both" or (at == last) == (parts == "importance"):
            weight = weight + activation[at]
        is_corrected = parts != "transition" and at == 0
        is_step = steps == "paper" and parts != "importance" and at > 0
        if is_corrected or is_step:
            weight = weight + probability[at]
        nodes.append(weight)
    return nodes


@dataclass(frozen=True, eq=False)
class Trajectories:
    """The heaviest paths of every sample, as far as they tell experts apart."""

    grid: Grid  # the layers and their experts
    # (samples, experts of all layers) place of the first path that an expert is on; where it is on
    # none of those followed, `followed`.
    first: IntArray
    # (samples, experts) logarithm of that path's weight; -inf where there is none.
    weights: FloatArray
    # (experts,) mean over samples of u; -inf where an expert's output is 0 on one of them.
    nodes: FloatArray
    followed: int  # how many paths of each sample were followed

    def union_size(self, count: int) -> int:
        """Experts on the first `count` paths of any sample."""
        return int((self.first < count).any(axis=0).sum())

    def smallest_count(self, num_kept: int) -> int:
        """The smallest number of paths whose union has `num_kept` experts; `followed` if none."""
        enters = np.sort(self.first.min(axis=0))
        return min(int(enters[num_kept - 1]) + 1, self.followed)

    def table(self, count: int) -> pd.DataFrame:
        """PATH_COLUMNS: how much the first `count` paths of each sample need an expert.

        `num_samples` whose paths hold it, `path_weight` of the best of these paths (NaN where there
        is none), `node_weight` its mean u, and `rank` over all layers, 0 = first to keep.
        """
        held = self.first < count
        num_samples = held.sum(axis=0)
        best = np.where(held, self.weights, -np.inf).max(axis=0)
        return self.grid.index().assign(
            num_samples=num_samples,
            path_weight=np.where(num_samples > 0, best, np.nan),
            node_weight=self.nodes,
            rank=path_order(num_samples, best, self.nodes),
        )[list(PATH_COLUMNS)]


def path_order(
    num_samples: NDArray[np.generic], path_weight: FloatArray, node_weight: FloatArray
) -> IntArray:
    """Rank of each expert over all layers, 0 = first to keep.

    More samples whose paths hold it, then the heavier of its paths, then the larger mean u, then
    the lower layer and expert, in whose order the arrays are.
    """
    first = np.lexsort((-node_weight, -path_weight, -num_samples.astype(np.float64)))
    rank = np.empty(len(first), dtype=np.int64)
    rank[first] = np.arange(len(first))
    return rank


def follow(stats: SampleStats, count: int, weighing: Weighing = PAPER) -> Trajectories:
    """The first `count` paths (the paper's m) of every sample that has a token."""
    if count > MOST_PATHS:
        raise UserError(
            f"{count:,} paths of each sample cannot be followed; ask for 1 to {MOST_PATHS:,}."
        )
    stats = chosen_samples(stats, np.flatnonzero(stats.num_tokens))
    samples = len(stats.num_tokens)
    if not samples:
        raise StatsError("No sample has a token to follow.")
    nodes = node_weights(stats, weighing.parts)
    first = np.full((samples, int(sum(stats.grid.counts))), count, dtype=np.int64)
    weights = np.full(first.shape, -np.inf)
    # Without steps there is nothing to measure.
    is_measured = weighing.steps == "measured" and weighing.parts != "importance"
    paths = _measured_paths(stats, count, weighing) if is_measured else None
    for block, experts, path_weights in paths or top_paths_of_samples(nodes, count):
        # Where each expert, numbered over all layers, is first met; impossible paths meet none.
        ids = experts + np.cumsum([0, *stats.grid.counts])[:-1]
        sample, path = np.nonzero(np.isfinite(path_weights))
        np.minimum.at(first[block], (sample[:, None], ids[sample, path]), path[:, None])
        found = first[block] < path_weights.shape[1]
        weights[block][found] = path_weights[np.nonzero(found)[0], first[block][found]]
    # A mean over logarithms: -inf of one sample is -inf of all.
    mean = np.mean(np.concatenate(nodes, axis=1), axis=0)
    return Trajectories(stats.grid, first, weights, mean, count)


def _measured_paths(
    stats: SampleStats, count: int, weighing: Weighing
) -> Iterator[tuple[slice, IntArray, FloatArray]]:
    """As `top_paths_of_samples`, with steps weighed by where tokens really went on."""
    nodes = node_weights(stats, weighing.parts, "measured")
    steps: list[FloatArray] = []
    for counts in stats.transitions:
        total = counts.sum(axis=1, keepdims=True)
        shares = np.divide(counts, total, out=np.zeros(counts.shape), where=total > 0)
        with np.errstate(divide="ignore"):  # -inf if unreachable
            steps.append(np.log(shares))
    for sample in range(len(stats.num_tokens)):
        paths = top_paths_through([node[sample] for node in nodes], steps, count)
        yield slice(sample, sample + 1), paths.experts[None], paths.weights[None]


def follow_until(
    stats: SampleStats, num_kept: int, weighing: Weighing = PAPER, *, limit: int = MOST_PATHS
) -> Trajectories:
    """Follow ever more paths until their union has `num_kept` experts, or `limit` are followed."""
    count = 1
    while True:
        found = follow(stats, count, weighing)
        if found.union_size(count) >= num_kept or count >= limit:
            return found
        count = min(4 * count, limit)


def chosen_samples(stats: SampleStats, samples: IntArray) -> SampleStats:
    """Some of the samples, in this order; the transitions stay those of all."""
    return replace(
        stats,
        num_tokens=stats.num_tokens[samples],
        activation=stats.activation[samples],
        probability=stats.probability[samples],
        loss=stats.loss[samples],
    )


def representative_samples(stats: SampleStats, clusters: int) -> SampleStats:
    """Of each of `clusters` clusters the sample nearest the centre, by k-means.

    The paper clusters the calibration corpus before the model runs and names no features. These are
    chosen from what was measured already, by how the routers spread over the experts: r of all
    layers side by side.
    """
    if clusters < 1:
        raise UserError(f"{clusters} clusters are none; ask for at least 1.")
    having = chosen_samples(stats, np.flatnonzero(stats.num_tokens))
    features = having.probability / having.num_tokens[:, None]
    return chosen_samples(having, np.array(nearest_to_centroids(features, clusters, seed=42)))
