"""Level switch: budget moved between two layers (arXiv:2603.06003, Eq. 5-6 and Algorithm 1)."""

import numpy as np

from pruning.search.space import Removed, Space


def num_switches(max_steps: int, rng: np.random.Generator) -> int:
    """tau = the smaller of two draws from 1..max_steps (Eq. 6): mostly few switches."""
    first, second = rng.integers(1, max_steps + 1, size=2)
    return int(min(first, second))


def switch(removed: Removed, space: Space, max_transfer: int, rng: np.random.Generator) -> Removed:
    """Move budget from one layer to another: r_a += Delta, r_b -= Delta.

    The paper draws (a, b, Delta <= max_transfer) until the result is feasible, so each feasible
    triple is equally likely. Here one of those is drawn at once: the same law, and no endless loop.
    Delta counts steps of the space, which are single experts unless layers give and take several
    at a time. The space has more than one element.
    """
    taken = np.array(space.steps_of(removed))
    can_lose = np.minimum(np.array(space.most_steps) - taken, max_transfer)
    # ways[a, b]: how many Delta are feasible for this pair.
    ways = np.minimum(can_lose[:, None], taken[None, :])
    np.fill_diagonal(ways, 0)
    ends = np.cumsum(ways)
    if not ends[-1]:
        raise ValueError("no other allocation is feasible, so there is nothing to switch to")
    drawn = int(rng.integers(ends[-1]))
    pair = int(np.searchsorted(ends, drawn, side="right"))
    more, less = divmod(pair, len(taken))
    transfer = drawn - int(ends[pair] - ways[more, less]) + 1
    taken[more] += transfer
    taken[less] -= transfer
    return space.removed_by(taken.tolist())


def mutate(
    removed: Removed, space: Space, max_transfer: int, max_steps: int, rng: np.random.Generator
) -> Removed:
    """A child: `num_switches` switches, one after the other. It may equal its parent."""
    for _ in range(num_switches(max_steps, rng)):
        removed = switch(removed, space, max_transfer, rng)
    return removed
