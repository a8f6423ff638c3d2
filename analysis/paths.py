"""The heaviest paths through the layers, one expert each: a heap where layers are independent, a
dynamic program where the step from one expert to the next has a weight of its own.

Weights are logarithms and add up. Both methods order paths by weight, largest first, and equal ones
by their experts, smallest first.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from analysis.errors import UserError

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Paths:
    """Paths, heaviest first.

    Args:
        experts: (paths, layers) int64, the place of a path's expert among those of its layer.
        weights: (paths,) float64, logarithms.
    """

    experts: NDArray[np.int64]
    weights: FloatArray

    def __len__(self) -> int:
        return len(self.weights)


def top_paths(nodes: Sequence[FloatArray], count: int) -> Paths:
    """The `count` largest sums of one entry per layer; all of them where there are fewer.

    Layer by layer, the best prefixes and the layer's sorted entries are merged by a heap, so the
    cost is O(n log n + count log count) a layer. A prefix that is not among the best `count` has as
    many better ones, each of which goes on as it could.

    Args:
        nodes: (experts,) of each layer, the weight of passing there; -inf is allowed, NaN is not.
        count: how many paths, at least 1.
    """
    _check(nodes, count)
    # Ties within a layer: the lower expert first.
    paths = Paths(np.zeros((1, 0), dtype=np.int64), np.zeros(1))
    for node in nodes:
        paths = _merged(paths, node, count)
    return paths


def _merged(paths: Paths, node: FloatArray, count: int) -> Paths:
    """The best of all prefixes, each with each entry of the next layer."""
    order = np.argsort(-node, kind="stable")
    entries, prefixes = node[order].tolist(), paths.weights.tolist()
    alphabetical = _alphabetical(paths.experts).tolist()
    experts = order.tolist()

    def reached(prefix: int, place: int) -> tuple[float, int, int, int, int]:
        weight = prefixes[prefix] + entries[place]
        return -weight, alphabetical[prefix], experts[place], prefix, place

    # What follows an entry comes after it in this order, so the smallest one is always there.
    frontier = [reached(0, 0)]
    found: list[tuple[float, int, int]] = []
    while frontier and len(found) < count:
        negative, _, expert, prefix, place = heapq.heappop(frontier)
        found.append((-negative, prefix, expert))
        if place + 1 < len(entries):
            heapq.heappush(frontier, reached(prefix, place + 1))
        if place == 0 and prefix + 1 < len(prefixes):
            heapq.heappush(frontier, reached(prefix + 1, 0))
    weights, parents, last = (np.array(column) for column in zip(*found, strict=True))
    return Paths(np.column_stack([paths.experts[parents], last]), weights)


def _alphabetical(experts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Rank of each row among the rows in lexicographic order."""
    ranks = np.empty(len(experts), dtype=np.int64)
    order = np.lexsort(experts.T[::-1]) if experts.shape[1] else np.arange(len(experts))
    ranks[order] = np.arange(len(experts))
    return ranks


def top_paths_through(
    nodes: Sequence[FloatArray], steps: Sequence[FloatArray], count: int
) -> Paths:
    """The `count` heaviest paths where each step has a weight (MoE Pathfinder, Eq. 11-12).

    For every expert the best `count` prefixes that end there are kept, layer by layer:
    O(n^2 count) a layer.

    Args:
        nodes: as for `top_paths`.
        steps: for each layer but the last, (experts, experts of the next) weights.
        count: how many paths, at least 1.
    """
    _check(nodes, count)
    if [step.shape for step in steps] != [(len(a), len(b)) for a, b in pairwise(nodes)]:
        raise ValueError("one step matrix (experts, experts of the next layer) between two layers")
    ends = [Paths(np.array([[e]]), node_weight) for e, node_weight in enumerate(nodes[0][:, None])]
    for node, step in zip(nodes[1:], steps, strict=True):
        ends = _extended(ends, node, step, count)
    return _best(_joined(ends), count)


def _joined(ends: Sequence[Paths]) -> Paths:
    return Paths(
        np.concatenate([each.experts for each in ends]),
        np.concatenate([each.weights for each in ends]),
    )


def _extended(ends: Sequence[Paths], node: FloatArray, step: FloatArray, count: int) -> list[Paths]:
    """For each expert of the next layer, the best prefixes that end there."""
    prefixes = _joined(ends)
    last = prefixes.experts[:, -1]
    extended = []
    for expert in range(len(node)):
        weights = prefixes.weights + (step[last, expert] + node[expert])
        best = _best(Paths(prefixes.experts, weights), count)
        column = np.full((len(best), 1), expert)
        extended.append(Paths(np.hstack([best.experts, column]), best.weights))
    return extended


def _best(paths: Paths, count: int) -> Paths:
    """The heaviest `count`, in order."""
    if len(paths) > count:
        # All that weigh as much as the last one: experts decide among them.
        least = np.partition(paths.weights, len(paths) - count)[len(paths) - count]
        among = paths.weights >= least
        paths = Paths(paths.experts[among], paths.weights[among])
    order = np.lexsort((*paths.experts.T[::-1], -paths.weights))[:count]
    return Paths(paths.experts[order], paths.weights[order])


def _check(nodes: Sequence[FloatArray], count: int) -> None:
    if count < 1:
        raise UserError(f"{count} paths are none; ask for at least 1.")
    if not nodes or any(len(node) == 0 for node in nodes):
        raise ValueError("a path needs at least one layer, and each layer at least one expert")
    if any(np.isnan(node).any() for node in nodes):
        raise ValueError("the weight of an expert is NaN")
