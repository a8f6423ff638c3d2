"""Pareto front: the candidates that no other beats at both cost and quality."""

import numpy as np
from numpy.typing import ArrayLike

from analysis.arrays import BoolArray


def pareto_front(cost: ArrayLike, quality: ArrayLike, *, higher_is_better: bool) -> BoolArray:
    """(candidates,) True where no other candidate is at least as good in both, and better in one.

    Candidates that are equal in both do not beat each other. One without a number is on no front. A
    lower cost is better.
    """
    costs, worth = np.asarray(cost, dtype=np.float64), np.asarray(quality, dtype=np.float64)
    if costs.shape != worth.shape or costs.ndim != 1:
        raise ValueError(f"costs and qualities of shapes {costs.shape} and {worth.shape}")
    gains = worth if higher_is_better else -worth
    front = np.zeros(len(costs), dtype=np.bool_)
    last: tuple[float, float] | None = None
    # The cheapest first, of those that cost the same the best: each has only the last of the front
    # to beat.
    for place in np.lexsort((-gains, costs)):
        here = float(costs[place]), float(gains[place])
        if np.isfinite(here).all() and (last is None or here[1] > last[1] or here == last):
            front[place], last = True, here
    return front
