"""The heaviest paths through the layers, one expert each.

Found by merging sorted layers where they are independent, by a dynamic program where the step from
one expert to the next has a weight of its own.

Weights are logarithms and add up. Both methods order paths by weight, largest first, and equal ones
by their experts, smallest first.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from analysis.arrays import FloatArray, IntArray
from analysis.errors import UserError

# Sums of a prefix and an entry that are looked at together: 32 MiB each of weights and of order.
_MOST_CANDIDATES = 1 << 22


@dataclass(frozen=True, eq=False)
class Paths:
    """Paths, heaviest first."""

    # (paths, layers) int64, the place of a path's expert among those of its layer.
    experts: IntArray
    weights: FloatArray  # (paths,) float64, logarithms

    def __len__(self) -> int:
        return len(self.weights)


def top_paths_of_samples(
    nodes: Sequence[FloatArray], count: int
) -> Iterator[tuple[slice, IntArray, FloatArray]]:
    """The `count` largest sums of one entry per layer, for many samples, some of them at a time.

    All of them where there are fewer. Layer by layer the best `count` prefixes are merged with the
    layer's entries, both sorted. The sum of prefix p and entry e (from 0) has (p + 1)(e + 1) - 1
    others that come before it, so only the pairs with (p + 1)(e + 1) <= count are looked at: about
    count log(count) of them. `nodes` is (samples, experts) of each layer, the weight of passing
    there; -inf is allowed, NaN is not.

    Yields:
        which samples; (samples, paths, layers) experts; (samples, paths) weights.
    """
    _check([node.reshape(-1) for node in nodes], count)
    candidates = max(len(_pairs(count, node.shape[1], count)[0]) for node in nodes)
    size = max(1, _MOST_CANDIDATES // max(candidates, count * len(nodes)))
    for start in range(0, len(nodes[0]), size):
        block = slice(start, start + size)
        experts, weights = _merged([node[block] for node in nodes], count)
        yield block, experts, weights


def _merged(nodes: Sequence[FloatArray], count: int) -> tuple[IntArray, FloatArray]:
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
        best = np.lexsort((keys, -sums), axis=1)[:, :count]
        weights, keys = (np.take_along_axis(each, best, axis=1) for each in (sums, keys))
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


def _pairs(prefixes: int, entries: int, count: int) -> tuple[IntArray, IntArray]:
    """Prefix and entry, each from the best, of all sums that can be among the best `count`."""
    reach = np.minimum(entries, count // np.arange(1, min(prefixes, count) + 1))
    prefix = np.repeat(np.arange(len(reach)), reach)
    return prefix, np.arange(len(prefix)) - np.repeat(np.cumsum(reach) - reach, reach)


def top_paths_through(
    nodes: Sequence[FloatArray], steps: Sequence[FloatArray], count: int
) -> Paths:
    """The `count` heaviest paths where each step has a weight (MoE Pathfinder, Eq. 11-12).

    `nodes` is (experts,) of each layer, `steps` (experts, experts of the next) of each but the
    last. For every expert the best `count` prefixes that end there are kept, layer by layer:
    O(n^2 count) a layer.
    """
    _check(nodes, count)
    if [step.shape for step in steps] != [(len(a), len(b)) for a, b in pairwise(nodes)]:
        raise ValueError("one step matrix (experts, experts of the next layer) between two layers")
    ends = [Paths(np.array([[e]]), np.array([weight])) for e, weight in enumerate(nodes[0])]
    for node, step in zip(nodes[1:], steps, strict=True):
        prefixes = _joined(ends)
        last, ends = prefixes.experts[:, -1], []
        for expert in range(len(node)):
            weights = prefixes.weights + (step[last, expert] + node[expert])
            best = _best(Paths(prefixes.experts, weights), count)
            column = np.full((len(best), 1), expert)
            ends.append(Paths(np.hstack([best.experts, column]), best.weights))
    return _best(_joined(ends), count)


def _joined(ends: Sequence[Paths]) -> Paths:
    return Paths(
        np.concatenate([each.experts for each in ends]),
        np.concatenate([each.weights for each in ends]),
    )


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
