"""Experts on the heaviest paths through the layers, sample by sample (MoE Pathfinder).

For a sample X with N tokens, every expert i of every layer runs on every token h_t, not only on
those routed to it:

    a_i = mean_t ||E_i(h_t)||_2        r_i = mean_t softmax(router logits)_i
    L_i = mean_t ||Y_t - E_i(h_t)||^2  (Y the routed output of the layer)

A path takes one expert per layer. The paper weights it by its experts' importance e = softmax(-L)
and by the steps t_ij = a_i r_j between neighbours (Eq. 5, 8, 11). Since t factorises, the weight is
a sum over layers of log e_i + log a_i (except the last) + log r_i (except the first); the
corrections of Eq. 9-10 add exactly the two missing terms, so every layer has the same

    u_i = log softmax(-L)_i + log a_i + log r_i.

The heaviest paths are found by merging sorted layers, or by a dynamic program if steps have weights
of their own. Paths are ordered by weight, largest first, then by their experts, smallest first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from analysis.corpora.clusters import nearest_to_centroids
from analysis.errors import StatsError, UserError, unknown_name
from analysis.lazy import pd
from analysis.numbers.arrays import FloatArray, IntArray
from analysis.stats.grid import Grid
from analysis.stats.samples import SampleStats

Parts = Literal["both", "importance", "transition"]
PARTS: Final[tuple[Parts, ...]] = get_args(Parts)
Steps = Literal["paper", "measured"]
STEPS: Final[tuple[Steps, ...]] = get_args(Steps)
PATH_COLUMNS: Final = ("layer", "expert", "num_samples", "path_weight", "node_weight", "rank")
MOST_PATHS: Final = 1 << 14  # per sample; the nodes decide the order of experts on later paths
# Sums of a prefix and an entry computed together: 32 MiB each of weights and of order.
_MOST_CANDIDATES = 1 << 22
_FEW_CANDIDATES = 1000  # of which all are sorted


@dataclass(frozen=True, slots=True)
class Weighing:
    """How paths are weighted."""

    # `importance` leaves out the steps (the paper's "IS only"), `transition` the importance ("TI
    # only", Table 5): what is left out counts as 1. The corrections at both ends belong to the
    # importance (Eq. 9-10).
    parts: Parts = "both"
    # `paper`: t_ij = a_i r_j. `measured`: t_ij = a_i P(j | i), where P is the measured share of
    # transitions from i that lead to j; not in the paper.
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

    All samples must have tokens; `parts` and `steps` as in `Weighing`. Measured steps have P(j | i)
    in place of r_j, so then only the first layer's nodes include log r.
    """
    starts = np.cumsum([0, *stats.grid.counts])[1:-1]

    def by_layer(sums: FloatArray) -> list[FloatArray]:
        return np.split(sums / stats.num_tokens[:, None], starts, axis=1)

    importance: list[FloatArray] = []
    for loss in by_layer(stats.loss):
        # log softmax(-L), shifted so that nothing under- or overflows.
        shifted = -loss - (-loss).max(axis=-1, keepdims=True)
        importance.append(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))
    # log 0: an expert whose output is 0 on the whole sample is on no path.
    with np.errstate(divide="ignore"):
        activation = [np.log(mean) for mean in by_layer(stats.activation)]
        probability = [np.log(mean) for mean in by_layer(stats.probability)]
    last = len(importance) - 1
    nodes = []
    for at, layer_importance in enumerate(importance):
        weight = np.zeros_like(layer_importance)
        if parts != "transition":
            weight = weight + layer_importance
        if parts == "both" or (at == last) == (parts == "importance"):
            weight = weight + activation[at]
        is_corrected = parts != "transition" and at == 0
        is_step = steps == "paper" and parts != "importance" and at > 0
        if is_corrected or is_step:
            weight = weight + probability[at]
        nodes.append(weight)
    return nodes


@dataclass(frozen=True, eq=False)
class Paths:
    """Paths, heaviest first."""

    experts: IntArray  # (paths, layers) int64, each expert's place within its layer
    weights: FloatArray  # (paths,) float64, logarithms

    def __len__(self) -> int:
        return len(self.weights)


def top_paths_of_samples(
    nodes: Sequence[FloatArray], count: int
) -> Iterator[tuple[slice, IntArray, FloatArray]]:
    """The `count` largest sums of one entry per layer, for blocks of samples.

    All sums if there are fewer. Layer by layer the best `count` prefixes are merged with the
    layer's entries, both sorted. At least (p + 1)(e + 1) - 1 sums are as large as that of prefix p
    and entry e (from 0), so only pairs with (p + 1)(e + 1) <= count are computed: about
    count log(count). `nodes` is (samples, experts) per layer, the weight of each expert; -inf is
    allowed, NaN is not.

    Yields:
        which samples; (samples, paths, layers) experts; (samples, paths) weights.
    """
    _check([node.reshape(-1) for node in nodes], count)
    candidates = max(len(_pairs(count, node.shape[1], count)[0]) for node in nodes)
    size = max(1, _MOST_CANDIDATES // max(candidates, count * len(nodes)))
    for start in range(0, len(nodes[0]), size):
        block = slice(start, start + size)
        experts, weights = _best_of_samples([node[block] for node in nodes], count)
        yield block, experts, weights


def _best_of_samples(nodes: Sequence[FloatArray], count: int) -> tuple[IntArray, FloatArray]:
    """Experts and weights of the best paths of every sample."""
    samples = len(nodes[0])
    weights = np.zeros((samples, 1))
    prefix_rank = np.zeros((samples, 1), dtype=np.int64)  # rank among the prefixes, by experts
    trail: list[tuple[IntArray, IntArray]] = []
    for node in nodes:
        # Ties within a layer: the lower expert first.
        order = np.argsort(-node, axis=1, kind="stable")
        prefix, entry = _pairs(weights.shape[1], node.shape[1], count)
        sums = weights[:, prefix] + np.take_along_axis(node, order, axis=1)[:, entry]
        keys = prefix_rank[:, prefix] * node.shape[1] + order[:, entry]
        best = _heaviest(sums, keys, count)
        weights, keys = (np.take_along_axis(array, best, axis=1) for array in (sums, keys))
        prefix_rank = keys.argsort(axis=1).argsort(axis=1)
        trail.append((prefix[best], keys % node.shape[1]))
    samples, paths = trail[-1][0].shape
    experts = np.empty((samples, paths, len(trail)), dtype=np.int64)
    at = np.broadcast_to(np.arange(paths), (samples, paths))
    for layer in range(len(trail) - 1, -1, -1):
        prefix, expert = trail[layer]
        experts[:, :, layer] = np.take_along_axis(expert, at, axis=1)
        at = np.take_along_axis(prefix, at, axis=1)
    return experts, weights


def _heaviest(sums: FloatArray, keys: IntArray, count: int) -> IntArray:
    """Places of each row's `count` largest sums, in order; of equal ones the lower key first."""
    if sums.shape[1] <= max(count, _FEW_CANDIDATES):
        return np.lexsort((keys, -sums), axis=1)[:, :count]
    # Of many, a row's own are found first, with ties with the last one, and only these are sorted.
    last = np.partition(-sums, count - 1, axis=1)[:, count - 1]
    best = np.empty((len(sums), count), dtype=np.int64)
    for row, limit in enumerate(last):
        among = np.flatnonzero(-sums[row] <= limit)
        best[row] = among[np.lexsort((keys[row, among], -sums[row, among]))[:count]]
    return best


def _pairs(prefixes: int, entries: int, count: int) -> tuple[IntArray, IntArray]:
    """Prefixes and entries, numbered from the best, whose sums can be among the best `count`."""
    reach = np.minimum(entries, count // np.arange(1, min(prefixes, count) + 1))
    prefix = np.repeat(np.arange(len(reach)), reach)
    return prefix, np.arange(len(prefix)) - np.repeat(np.cumsum(reach) - reach, reach)


def top_paths_through(
    nodes: Sequence[FloatArray], steps: Sequence[FloatArray], count: int
) -> Paths:
    """The `count` heaviest paths if each step has a weight (MoE Pathfinder, Eq. 11-12).

    `nodes` is (experts,) per layer, `steps` (experts, experts of the next) per layer but the last.
    Keeps, layer by layer, the best `count` prefixes that end in each expert: O(n^2 count) a layer.
    """
    _check(nodes, count)
    if [step.shape for step in steps] != [(len(a), len(b)) for a, b in pairwise(nodes)]:
        raise ValueError("one step matrix (experts, experts of the next layer) between two layers")
    ends = [Paths(np.array([[e]]), np.array([weight])) for e, weight in enumerate(nodes[0])]
    for node, step in zip(nodes[1:], steps, strict=True):
        prefixes = _join(ends)
        last, ends = prefixes.experts[:, -1], []
        for expert in range(len(node)):
            weights = prefixes.weights + (step[last, expert] + node[expert])
            best = _best(Paths(prefixes.experts, weights), count)
            column = np.full((len(best), 1), expert)
            ends.append(Paths(np.hstack([best.experts, column]), best.weights))
    return _best(_join(ends), count)


def _join(ends: Sequence[Paths]) -> Paths:
    return Paths(
        np.concatenate([paths.experts for paths in ends]),
        np.concatenate([paths.weights for paths in ends]),
    )


def _best(paths: Paths, count: int) -> Paths:
    """The heaviest `count`, in order."""
    if len(paths) > count:
        # Keep ties with the last one: their experts decide.
        least = np.partition(paths.weights, len(paths) - count)[len(paths) - count]
        among = paths.weights >= least
        paths = Paths(paths.experts[among], paths.weights[among])
    order = np.lexsort((*paths.experts.T[::-1], -paths.weights))[:count]
    return Paths(paths.experts[order], paths.weights[order])


def _check(nodes: Sequence[FloatArray], count: int) -> None:
    if count < 1:
        raise UserError(f"{count} paths are too few; use at least 1.")
    if not nodes or any(len(node) == 0 for node in nodes):
        raise ValueError("a path needs at least one layer, and each layer at least one expert")
    if any(np.isnan(node).any() for node in nodes):
        raise ValueError("the weight of an expert is NaN")


@dataclass(frozen=True, eq=False)
class Trajectories:
    """The heaviest paths of every sample, summarised per expert."""

    grid: Grid
    first: IntArray  # (samples, experts of all layers) its first path; `followed` if on none
    weights: FloatArray  # (samples, experts) logarithm of that path's weight; -inf if on none
    nodes: FloatArray  # (experts,) mean of u over samples; -inf if the output is 0 on one of them
    followed: int  # paths followed per sample

    def union_size(self, count: int) -> int:
        """Experts on the first `count` paths of any sample."""
        return int((self.first < count).any(axis=0).sum())

    def smallest_count(self, num_kept: int) -> int:
        """The fewest paths whose union has `num_kept` experts; `followed` if too few do."""
        enters = np.sort(self.first.min(axis=0))
        return min(int(enters[num_kept - 1]) + 1, self.followed)

    def table(self, count: int) -> pd.DataFrame:
        """PATH_COLUMNS: how much the first `count` paths of each sample use an expert.

        `num_samples` counts the samples with such a path, `path_weight` is its largest weight (NaN
        if there is none), `node_weight` its mean u, and `rank` its rank over all layers, 0 = kept
        first.
        """
        on_path = self.first < count
        num_samples = on_path.sum(axis=0)
        best = np.where(on_path, self.weights, -np.inf).max(axis=0)
        return self.grid.index().assign(
            num_samples=num_samples,
            path_weight=np.where(num_samples > 0, best, np.nan),
            node_weight=self.nodes,
            rank=path_order(num_samples, best, self.nodes),
        )[list(PATH_COLUMNS)]


def path_order(
    num_samples: NDArray[np.generic], path_weight: FloatArray, node_weight: FloatArray
) -> IntArray:
    """Rank of each expert over all layers, 0 = kept first.

    By the number of samples, then the heaviest path, then mean u, then the order of the arrays
    (layer and expert).
    """
    first = np.lexsort((-node_weight, -path_weight, -num_samples.astype(np.float64)))
    rank = np.empty(len(first), dtype=np.int64)
    rank[first] = np.arange(len(first))
    return rank


def follow_paths(stats: SampleStats, count: int, weighing: Weighing = PAPER) -> Trajectories:
    """The first `count` paths (the paper's m) of every sample that has a token."""
    if count > MOST_PATHS:
        raise UserError(f"{count:,} paths per sample cannot be followed; use 1 to {MOST_PATHS:,}.")
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
        # The first path of each expert, numbered over all layers; impossible paths do not count.
        ids = experts + np.cumsum([0, *stats.grid.counts])[:-1]
        sample, path = np.nonzero(np.isfinite(path_weights))
        np.minimum.at(first[block], (sample[:, None], ids[sample, path]), path[:, None])
        on_path = first[block] < path_weights.shape[1]
        weights[block][on_path] = path_weights[np.nonzero(on_path)[0], first[block][on_path]]
    # A mean of logarithms: -inf for one sample makes it -inf.
    mean = np.mean(np.concatenate(nodes, axis=1), axis=0)
    return Trajectories(stats.grid, first, weights, mean, count)


def _measured_paths(
    stats: SampleStats, count: int, weighing: Weighing
) -> Iterator[tuple[slice, IntArray, FloatArray]]:
    """As `top_paths_of_samples`, with steps weighted by the measured transitions."""
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
    """Follow ever more paths until their union has `num_kept` experts, at most `limit`."""
    count = 1
    while True:
        trajectories = follow_paths(stats, count, weighing)
        if trajectories.union_size(count) >= num_kept or count >= limit:
            return trajectories
        count = min(4 * count, limit)


def chosen_samples(stats: SampleStats, samples: IntArray) -> SampleStats:
    """Some of the samples, in this order; the transitions stay those of all samples."""
    return replace(
        stats,
        num_tokens=stats.num_tokens[samples],
        activation=stats.activation[samples],
        probability=stats.probability[samples],
        loss=stats.loss[samples],
    )


def representative_samples(stats: SampleStats, clusters: int) -> SampleStats:
    """The samples nearest the centroids of `clusters` k-means clusters.

    The paper clusters the corpus before the model runs and names no features. This clusters by what
    was measured: the router probabilities r of all layers.
    """
    if clusters < 1:
        raise UserError(f"{clusters} clusters are too few; use at least 1.")
    with_tokens = chosen_samples(stats, np.flatnonzero(stats.num_tokens))
    features = with_tokens.probability / with_tokens.num_tokens[:, None]
    return chosen_samples(with_tokens, np.array(nearest_to_centroids(features, clusters, seed=42)))
