"""Top paths: both methods against every path there is, ties included, and against each other."""

from itertools import pairwise, product

import numpy as np
import pytest

from analysis.errors import UserError
from analysis.ranking.paths import Paths, top_paths_of_samples, top_paths_through


def every_path(nodes, steps=None):
    """All paths as (-weight, experts), sorted: heaviest first, then the smaller experts."""
    found = []
    for path in product(*(range(len(node)) for node in nodes)):
        weight = sum(float(node[expert]) for node, expert in zip(nodes, path, strict=True))
        if steps is not None:
            weight += sum(float(step[path[i], path[i + 1]]) for i, step in enumerate(steps))
        found.append((-weight, path))
    return sorted(found)


def top_paths(nodes, count):
    """The paths of one sample."""
    ((_, experts, weights),) = top_paths_of_samples([node[None, :] for node in nodes], count)
    return Paths(experts[0], weights[0])


def as_list(paths):
    return [
        (-float(weight), tuple(experts))
        for weight, experts in zip(paths.weights, paths.experts.tolist(), strict=True)
    ]


def dyadic(rng, *shape):
    """Multiples of 1/4 in a small range: sums are exact, and ties are many."""
    return rng.integers(-8, 1, shape) / 4


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("count", [1, 2, 7, 50, 10_000])
def test_independent_layers_against_every_path(seed, count):
    rng = np.random.default_rng(seed)
    nodes = [dyadic(rng, size) for size in rng.integers(1, 6, rng.integers(1, 5))]
    assert as_list(top_paths(nodes, count)) == every_path(nodes)[:count]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("count", [1, 2, 7, 50, 10_000])
def test_steps_against_every_path(seed, count):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 6, rng.integers(1, 5))
    nodes = [dyadic(rng, size) for size in sizes]
    steps = [dyadic(rng, *pair) for pair in pairwise(sizes)]
    assert as_list(top_paths_through(nodes, steps, count)) == every_path(nodes, steps)[:count]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("count", [1, 100, 1500])
def test_both_methods_agree_where_steps_factorise(seed, count):
    """t_ij = a_i r_j (Eq. 5): its parts may stand in the nodes or in the steps."""
    rng = np.random.default_rng(seed)
    importance, activation, router = (dyadic(rng, 8, 12) for _ in range(3))
    steps = [activation[at][:, None] + router[at + 1][None, :] for at in range(7)]
    nodes = [
        importance[at] + (activation[at] if at < 7 else 0) + (router[at] if at > 0 else 0)
        for at in range(8)
    ]
    whole = top_paths(nodes, count)
    assert as_list(top_paths_through(list(importance), steps, count)) == as_list(whole)


def test_what_cannot_be_passed_comes_last():
    paths = top_paths([np.array([0.0, -np.inf]), np.array([-1.0, -2.0])], 10)
    assert paths.experts.tolist() == [[0, 0], [0, 1], [1, 0], [1, 1]]
    assert paths.weights.tolist() == [-1.0, -2.0, -np.inf, -np.inf]


def test_no_path_is_refused():
    with pytest.raises(UserError, match="at least 1"):
        top_paths([np.zeros(2)], 0)
